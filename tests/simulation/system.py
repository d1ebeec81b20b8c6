"""Where Celery and the library ask the system, they ask the schedule.

What each process has for itself, the pipe to a main process, the ends of children, and signals.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime, tzinfo
from functools import partial
from types import SimpleNamespace
from typing import Any
from weakref import WeakValueDictionary

from billiard import einfo
from celery.worker import control, request, state
from kombu.asynchronous.timer import Entry

from celery_dlock import runtime
from celery_dlock.delivery import abort
from celery_dlock.delivery.taking import ToMain
from celery_dlock.errors import LockLost
from celery_dlock.messages import countdown, envelope, way_back
from celery_dlock.settings import Settings
from celery_dlock.tasks import event_loop
from celery_dlock.worker import children, parking, periodic
from tests.simulation.coroutines import Threads
from tests.simulation.kernel import Green, Kernel, Process
from tests.simulation.plan import Stranger

SCHEMA = envelope.SCHEMA

#: What each process has for itself.
_PLACES = (
    (ToMain, "way"),
    (runtime, "_processes"),
    (children.Children, "current"),
    (parking.Parking, "current"),
    (periodic, "_retries"),
    (state.reserved_requests, "data"),
    (state.active_requests, "data"),
    (state.scheduled_requests, "data"),
    (state.revoked, "_data"),
    (state.revoked, "_heap"),
    (envelope, "SCHEMA"),
)


def process(name: str, parent: Process | None = None) -> Process:
    """One with nothing of another's but, forked off *parent*, the way to tell that."""
    made = runtime._ProcessRuntimes()
    way = None if parent is None else ToMain.way
    values: Sequence[Any] = (
        way,
        lambda: made,
        None,
        None,
        WeakValueDictionary[str, Any](),
        InOrder(),
        InOrder(),
        InOrder(),
        {},
        [],
        SCHEMA + (name == Stranger.OF_RELEASE),
    )
    return Process(name, _PLACES, values)


class InOrder(dict[Any, None]):
    """A set that is the same in each run, wherever its members lie."""

    def add(self, each: Any) -> None:
        self[each] = None

    def discard(self, each: Any) -> None:
        self.pop(each, None)

    remove = discard


class Pipe:
    """One end of a pair of sockets within a host."""

    def __init__(self) -> None:
        self.heard: Callable[[], object] | None = None
        self.worker: Any = None
        self.there: deque[bytes] = deque()
        self.far: Pipe = self

    def setblocking(self, _: bool) -> None: ...

    def send(self, data: bytes) -> None:
        kernel = Kernel.here()
        kernel.me()
        if len(self.far.there) >= 3:
            raise BlockingIOError
        self.far.there.append(data)
        if self.far.worker is not None and self.far.heard is not None:
            self.far.worker.hear(self.far.heard)

    def recv(self, _: int) -> bytes:
        if not self.there:
            raise BlockingIOError
        return self.there.popleft()


def _pair(*_: object) -> tuple[Pipe, Pipe]:
    here, there = Pipe(), Pipe()
    here.far, there.far = there, here
    return here, there


class Watcher:
    """Tells of children that are gone."""

    def __init__(self) -> None:
        self._gone: list[int] = []
        self._waiting: Green | None = None
        self._told = False

    def watch(self, pid: int) -> None:
        child = CHILDREN[pid]
        if child.process.alive:
            child.process.at_death.append(partial(self._is_gone, pid))
        else:
            self._is_gone(pid)

    def _is_gone(self, pid: int) -> None:
        self._gone.append(pid)
        self.interrupt()

    def wait(self, seconds: float | None = None) -> list[int]:
        kernel = Kernel.here()
        self._waiting = kernel.me()
        if not self._gone and not self._told and seconds != 0:
            kernel.wait(seconds)
        self._waiting, self._told = None, False
        gone, self._gone = self._gone, []
        return gone

    def interrupt(self) -> None:
        self._told = True
        if self._waiting is not None:
            Kernel.here().wake(self._waiting)


#: All that have been forked in this schedule, by their numbers.
CHILDREN: dict[int, Any] = {}

#: What is called as a worker ends, by the process of its worker.
FINALIZERS: dict[Process, list[tuple[int, Callable[[], object]]]] = defaultdict(list)


def finalize(_: object, call: Callable[[], object], exitpriority: int) -> None:
    FINALIZERS[Kernel.here().me().process].append((exitpriority, call))


def stand_in() -> None:
    """Where the library asks the system, it asks the schedule from now on."""
    vars(children).update(processes=Watcher, Finalize=finalize)
    sockets = SimpleNamespace(AF_UNIX=None, SOCK_DGRAM=None, socketpair=_pair)
    vars(parking).update(socket=sockets)
    for module in (request, countdown, way_back):
        vars(module).update(datetime=Datetime)
    vars(control).update(_find_requests_by_id=_reserved)
    vars(abort).update(OtherThread=Abortable)
    vars(event_loop).update(_threads=Threads)
    # Of two for one instant the first one is not that which lies at the lower address.
    Entry.__lt__ = lambda *_: False  # type: ignore[method-assign]
    # Nobody looks at where in the code an error came up.
    einfo.Traceback.__init__.__defaults__ = (0, 0)
    einfo._Frame.Code = staticmethod(lambda _: None)
    vars(einfo).update(traceback=SimpleNamespace(format_exception=lambda *_: ()))


def read_settings(app: Any) -> None:
    """They are worked out once; processes differ in their broker at most."""
    here = Settings.from_conf(app.conf)
    there = replace(here, broker=Stranger.OF_BROKER)

    def from_conf(_: object) -> Settings:
        running = Kernel.here().running
        strange = running is not None and running.process.name == Stranger.OF_BROKER
        return there if strange else here

    vars(runtime).update(Settings=SimpleNamespace(from_conf=from_conf))


def _reserved(task_ids: Iterable[str]) -> Iterator[Any]:
    """Celery looks into a dictionary that all processes share here."""
    return (each for each in state.reserved_requests if each.id in task_ids)


class Datetime(datetime):
    """By which a request expires, and a message is due."""

    @classmethod
    def now(cls, tz: tzinfo | None = None) -> Datetime:
        return cls.fromtimestamp(time.time(), tz)


class Abortable(abort.Thread):
    """A thread that is struck where it gives way, and not by a signal between any two lines."""

    __slots__ = ("_green",)

    def __init__(self) -> None:
        super().__init__()
        self._green = Kernel.here().me()

    def send(self) -> None:
        call, frame = self.due(), self._green.greenlet.gr_frame
        if call is not None and abort._is_open(abort._stack(frame), call.frame):
            call.struck = True
            Kernel.here().strike(self._green, LockLost(*call.lost))
