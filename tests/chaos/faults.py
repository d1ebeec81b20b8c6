"""What goes wrong, done: each fault lasts as long as its block."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from dataclasses import dataclass

import psutil

from tests.chaos.plan import Kind, Strike
from tests.chaos.stage import Stage
from tests.chaos.stores import Store
from tests.services.worker import Worker


@dataclass(frozen=True, slots=True)
class Struck:
    """A fault that has happened, on the monotonic clock."""

    kind: Kind
    begin: float
    end: float


def strike(
    stage: Stage, what: Strike, copy: Callable[[int], None]
) -> AbstractContextManager[object]:
    """The fault *what*; *copy* sends again the message of that number."""
    worker = stage.workers[what.target % len(stage.workers)]
    match what.kind:
        case Kind.KILL_CHILD:
            return _at_once(lambda: _kill_a_child(worker, what.target))
        case Kind.KILL_MAIN:
            return _at_once(lambda: worker.send(signal.SIGKILL))
        case Kind.KILL_WORKER:
            return _at_once(lambda: _signal(worker, signal.SIGKILL))
        case Kind.STOP_WORKER:
            return _at_once(lambda: worker.send(signal.SIGTERM))
        case Kind.STOP_COLD:
            return _at_once(lambda: worker.send(signal.SIGQUIT))
        case Kind.PAUSE_WORKER:
            return _paused(worker)
        case Kind.RESTART_BROKER:
            return _at_once(lambda: _restart_broker(stage, what.length))
        case Kind.COPY:
            return _at_once(lambda: copy(what.target))
        case _:
            return _strike_store(stage.store, what.kind, what.target)


def _strike_store(store: Store, kind: Kind, target: int) -> AbstractContextManager[object]:
    match kind:
        case Kind.CUT_STORE:
            return _at_once(store.cut)
        case Kind.LOSE_REPLIES:
            return _at_once(lambda: store.lose_replies(1 + target % 6))
        case Kind.STORE_AWAY:
            return store.away()
        case Kind.PAUSE_STORE:
            return store.paused()
        case Kind.KILL_MEMBER:
            return store.member_killed(target)
        case Kind.PAUSE_MEMBER:
            return store.member_paused(target)
        case _:
            raise AssertionError(f"{kind} is not about the store")


def _at_once(act: Callable[[], None]) -> AbstractContextManager[object]:
    act()
    return nullcontext()


@contextmanager
def _paused(worker: Worker) -> Iterator[None]:
    group = worker.pid
    _signal(worker, signal.SIGSTOP)
    try:
        yield
    finally:
        with suppress(ProcessLookupError):  # another fault may have killed it meanwhile
            os.killpg(group, signal.SIGCONT)


def _signal(worker: Worker, number: signal.Signals) -> None:
    worker.send(number, whole_group=True)


def _kill_a_child(worker: Worker, target: int) -> None:
    with suppress(psutil.NoSuchProcess):
        children = psutil.Process(worker.pid).children()
        if children:
            children[target % len(children)].kill()


def _restart_broker(stage: Stage, length: float) -> None:
    """Nothing else is done meanwhile: whoever publishes would wait for the broker anyway."""
    stage.broker.kill()
    time.sleep(length)
    stage.broker.start()
