"""Messages for a key that is waited for are parked by the main process, and take no slot.

Once a task of this worker waits for a key, the next ones would only be sent to a child to be parked
by it. They are held back instead, until all that came before them have asked for the key, and are
then parked in the order in which they came, by a thread, which the worker's loop never waits for.
Each is acknowledged when the store has it. Until then the broker has it: if the connection is lost,
or the worker ends, it is delivered again.

That is done for tasks with one key that is made by a template, under ``Queue``, and for messages
that are to run as they come. All else goes to a child, as does what the store does not take: the
policy is asked there, and no code of a project runs here.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import takewhile
from queue import SimpleQueue
from typing import Any, ClassVar
from weakref import WeakValueDictionary

from celery import bootsteps
from celery.exceptions import InvalidTaskError
from celery.worker import state
from celery.worker.strategy import default
from kombu.exceptions import ContentDisallowed, DecodeError

from celery_dlock.core.events import Dropped, Subject, TooLarge
from celery_dlock.core.operations import Enter
from celery_dlock.core.state import Claim, Drop, Park, Reason
from celery_dlock.delivery.plan import waits_behind
from celery_dlock.delivery.taking import FOLLOWED, WAITS, ToMain
from celery_dlock.delivery.unique import UniqueRun
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.claims import enqueued
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import HISTORY, History, delivery_note, identity_in
from celery_dlock.messages.unique import UniqueTerms, duplicate_of
from celery_dlock.policies.base import Queueing, queueing
from celery_dlock.runtime import runtime, this_process
from celery_dlock.worker.guard import Guard

logger = logging.getLogger("celery_dlock")

#: Messages that are parked in one go; the next of the key are held back meanwhile.
BATCH = 100

#: So much is read in one turn of the worker's loop.
READ_AT_ONCE = 200

#: Seconds between two looks at what has ended without a word.
LOOK_EVERY = 1.0

#: Where the nonce of a delivery that is followed lies on its message.
_NONCE = "dlock_nonce"

Handler = Callable[..., Any]


@dataclass(eq=False, slots=True)
class HeldBack:
    """A message, how its task is to queue, and what Celery does with it otherwise."""

    task: Any
    queueing: Queueing
    message: Any
    handler: Handler
    rest: tuple[Any, ...]
    consumer: Any

    def to_pool(self) -> None:
        """As Celery's loop does it: what is wrong with the message is no trouble of the worker."""
        try:
            self.handler(self.message, *self.rest)
        except (InvalidTaskError, ContentDisallowed) as exc:
            self.consumer.on_invalid_task(None, self.message, exc)
        except DecodeError as exc:
            self.consumer.on_decode_error(self.message, exc)

    def acknowledge(self, errors: tuple[type[Exception], ...]) -> None:
        _, acknowledge, *_ = self.rest
        acknowledge(logger, errors)


@dataclass(eq=False, slots=True)
class Line:
    """The messages for one key in this worker: who is about to ask for it, who is held back."""

    asking: set[str] = field(default_factory=set[str])
    held: deque[HeldBack] = field(default_factory=deque[HeldBack])
    waited_for: bool = False
    parking: bool = False
    #: Whether nothing has come for it since the last look.
    quiet: bool = False

    @property
    def idle(self) -> bool:
        return not (self.asking or self.held or self.parking)


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages for the thread to park, and its answer: how many it has parked, from the first."""

    key: str
    messages: Sequence[HeldBack]
    parked: int = 0
    waited_for: bool = True


@dataclass(frozen=True, slots=True)
class Entry:
    """A message as the store is to keep it, and what is asked for it."""

    subject: Subject
    claim: Claim
    message: bytes
    unique: UniqueRun | None
    repeated: bool


class Parking:
    """The lines of one connection of a worker; all but its thread runs in the worker's loop."""

    current: ClassVar[Parking | None] = None

    def __init__(self, app: Any, errors: tuple[type[Exception], ...]) -> None:
        self._app = app
        self._errors = errors
        self._lines: dict[str, Line] = {}
        self._keys: dict[str, str] = {}
        self._requests: WeakValueDictionary[str, Any] = WeakValueDictionary()
        self._todo: SimpleQueue[Batch | None] = SimpleQueue()
        self._done: SimpleQueue[Batch] = SimpleQueue()

    def start(self) -> None:
        threading.Thread(target=self._run, name="celery-dlock-parking", daemon=True).start()

    def end(self) -> None:
        """Forget what is held back: the broker delivers it again."""
        self._todo.put(None)
        self._lines.clear()
        self._keys.clear()

    # In the worker's loop.

    def arrive(self, key: str, arrived: HeldBack) -> None:
        """Hold the message back, park it or let Celery go on with it."""
        line = self._lines.setdefault(key, Line())
        line.held.append(arrived)
        line.quiet = False
        self._go_on(key, line)

    def follow(self, request: Any) -> dict[str, Any]:
        """What is noted of the delivery of *request*, if it is to tell that it has asked."""
        nonce = getattr(request.message, _NONCE, None)
        if nonce is None:
            return {}
        self._requests[nonce] = request
        return {"nonce": nonce, FOLLOWED: True}

    def look(self) -> None:
        """Count deliveries that have ended as asked, and forget quiet keys."""
        for nonce in list(self._keys):
            if self._requests.get(nonce) not in state.reserved_requests:
                self.asked(nonce)
        for key, line in list(self._lines.items()):
            if line.idle and line.quiet:
                del self._lines[key]
            line.quiet = True

    def asked(self, nonce: str, *, waits: bool = False) -> None:
        """Note that the delivery *nonce* has asked, or ended; it may wait now."""
        key = self._keys.pop(nonce, None)
        line = None if key is None else self._lines.get(key)
        if key is None or line is None:
            return
        line.asking.discard(nonce)
        line.waited_for = line.waited_for or waits
        self._go_on(key, line)

    def parked(self) -> None:
        """Acknowledge what the thread has parked, and go on with the rest."""
        while not self._done.empty():
            batch = self._done.get()
            line = self._lines[batch.key]
            line.parking, line.waited_for = False, batch.waited_for
            for message in batch.messages[: batch.parked]:
                message.acknowledge(self._errors)
            line.held.extendleft(reversed(batch.messages[batch.parked :]))
            if batch.parked < len(batch.messages):
                self._to_pool(batch.key, line)
            self._go_on(batch.key, line)

    def _go_on(self, key: str, line: Line) -> None:
        while line.held and not (line.parking or (line.asking and line.waited_for)):
            if line.waited_for:
                batch = [line.held.popleft() for _ in range(min(BATCH, len(line.held)))]
                line.parking = True
                self._todo.put(Batch(key, batch))
            else:
                self._to_pool(key, line)
        if line.idle and not line.waited_for:
            self._lines.pop(key, None)

    def _to_pool(self, key: str, line: Line) -> None:
        first = line.held.popleft()
        nonce = uuid.uuid4().hex
        setattr(first.message, _NONCE, nonce)
        line.asking.add(nonce)
        self._keys[nonce] = key
        first.to_pool()

    # In the thread.

    def _run(self) -> None:
        while (batch := self._todo.get()) is not None:
            self._done.put(self._park(batch))
            with suppress(OSError):  # it is full, and the loop about to read it
                assert ToMain.way is not None
                ToMain.way.send(b"")

    def _park(self, batch: Batch) -> Batch:
        """Park in order, up to the first message that cannot be parked; that goes to the pool."""
        parked, waited_for = 0, False
        # Of a queue that may be full one after the other
        together = all(message.queueing.max_waiting is None for message in batch.messages)
        flights = [batch.messages] if together else [[message] for message in batch.messages]
        try:
            for flight in flights:
                taken, waited_for = self._enter(batch.key, flight)
                parked += taken
                if taken < len(flight):
                    break
        except BackendUnavailable as exc:
            logger.debug("children ask for %s again: %s", batch.key, exc)
            waited_for = False
        except Exception:
            logger.exception("children ask for %s again", batch.key)
            waited_for = False
        return Batch(batch.key, batch.messages, parked, waited_for)

    def _enter(self, key: str, messages: Sequence[HeldBack]) -> tuple[int, bool]:
        """How many the store has now, from the first; and whether others wait for the key."""
        process = runtime(self._app)
        entries = [self._entry(key, message) for message in messages]
        fits = list(takewhile(lambda e: len(e.message) <= process.backend.largest_message, entries))
        for entry in entries[len(fits) : len(fits) + 1]:
            process.sinks.emit(TooLarge(entry.subject, len(entry.message)))
        replies = process.backend.apply_each([Enter(entry.claim, entry.message) for entry in fits])
        process.wake([wake for reply in replies for wake in reply.wakes])
        taken, waited_for = 0, True
        for entry, reply in zip(fits, replies, strict=True):
            match reply.verdict:
                case Park() as parked:
                    process.sinks.emit(waits_behind(entry.subject, key, parked))
                    if entry.unique is not None:
                        entry.unique.waits(key)
                case Drop(reason=reason):
                    process.sinks.emit(Dropped(entry.subject, key, reason, entry.repeated))
                    if entry.unique is not None and reason is Reason.DONE:
                        entry.unique.ends(entry.claim.task)
                case _:
                    break
            taken += 1
            waited_for = entry.claim.task not in {wake.task for wake in reply.wakes}
        return taken, waited_for

    def _entry(self, key: str, held: HeldBack) -> Entry:
        process, task, message = runtime(self._app), held.task, held.message
        definition, headers = task.lock_definition, message.headers
        attempt, terms = identity_in(headers), UniqueTerms.read(headers)
        subject = Subject(headers["id"], task.name, definition.label)
        history = History(attempt, waits=1, since=time.time(), carried=process.sinks.carry(subject))
        parked = ParkedMessage.of_delivery(process.wake.broker, attempt, delivery_note(message))
        claim = enqueued(definition.access[0], held.queueing, key, attempt, task.name)
        unique: UniqueRun | None = None
        if terms is not None:
            unique = UniqueRun(process, terms, attempt, task.name, this_process())
        before = ("retries", "replaced_task_nesting", HISTORY, "x-death")
        redelivered = (message.delivery_info or {}).get("redelivered")
        repeated = bool(redelivered or any(map(headers.get, before)))
        return Entry(subject, claim, parked.encode({HISTORY: history.header()}), unique, repeated)


def _asks_first(task: Any, message: Any) -> bool:
    """Whether it is a unique task that may have to end: a child decides that."""
    if duplicate_of(message.headers) is not None:
        return True
    unique = task.lock_definition.unique is not None
    return unique and UniqueTerms.read(message.headers) is None


def strategy(task: Any, app: Any, consumer: Any) -> Handler:
    """Celery's strategy, behind a look at whether the message can be parked here."""
    handler: Handler = default(task, app, consumer)
    queueing: Queueing | None = None
    with _PARKING_GUARD:
        queueing = _queueing_of(task, app)
    if queueing is None:
        return handler

    def handle(message: Any, *rest: Any) -> Any:
        parking, key = Parking.current, None
        if parking is None:
            return handler(message, *rest)
        with _PARKING_GUARD:
            key = _key(task, message, consumer.task_buckets)
        if key is None:
            return handler(message, *rest)
        return parking.arrive(key, HeldBack(task, queueing, message, handler, rest, consumer))

    return handle


_PARKING_GUARD = Guard("messages that wait for a key are sent to a child, which parks them")


def _queueing_of(task: Any, app: Any) -> Queueing | None:
    """How *task* queues, if its messages are ever parked here; with ``track_started`` a result is
    stored before, which a child does.
    """
    definition = task.lock_definition
    terms = queueing(definition.policy)
    simple = definition.template.is_one_text
    parks = terms is not None and simple and not terms.at_publish and not task.track_started
    return terms if parks else None


def _key(task: Any, message: Any, buckets: Mapping[str, Any]) -> str | None:
    """The key of a message that is to run as it comes; ``None`` for any other."""
    headers = message.headers
    if HISTORY in headers or any(headers.get(name) for name in ("eta", "expires", "retries")):
        return None
    if "id" not in headers:  # message protocol 1 has it in the body
        return None
    if headers["id"] in state.revoked or state.revoked_stamps or buckets[task.name]:
        return None
    if (message.delivery_info or {}).get("redelivered"):  # it may have run too often
        return None
    if _asks_first(task, message):
        return None
    try:
        args, kwargs, _ = message.payload
        (key,) = task.lock_definition.keys(args, kwargs).own
    except Exception:  # which the task is to say
        logger.debug("the arguments of %s give no key", headers["id"], exc_info=True)
        return None
    return str(key)


_HELD_BACK = "messages that are held back may wait until the next connection"


class ParkWithoutSlot(bootsteps.StartStopStep):  # type: ignore[misc]
    """A step of the consumer, in a prefork worker with a loop, whose children are forked."""

    requires = frozenset({"celery.worker.consumer.connection:Connection"})

    _looks: Any = None
    _guard = Guard(_HELD_BACK)

    def include_if(self, parent: Any) -> bool:
        pool = getattr(parent.controller, "pool_cls", None)
        prefork = getattr(pool, "__module__", "") == "celery.concurrency.prefork"
        return bool(prefork and parent.hub and hasattr(socket, "AF_UNIX"))

    def create(self, parent: Any) -> None:
        """Before the pool forks."""
        self._read, ToMain.way = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._read.setblocking(False)
        ToMain.way.setblocking(False)

    def start(self, parent: Any) -> None:
        self._guard = Guard(_HELD_BACK, parent.connection_errors)
        Parking.current = Parking(parent.app, parent.connection_errors)
        Parking.current.start()

    def stop(self, parent: Any) -> None:
        if Parking.current is not None:
            Parking.current.end()
            Parking.current = None
        if self._looks is not None:
            self._looks.cancel()

    def register_with_event_loop(self, parent: Any, hub: Any) -> None:
        hub.add_reader(self._read, self._hear)
        self._looks = hub.call_repeatedly(LOOK_EVERY, self._look)

    def _look(self) -> None:
        with self._guard:
            if Parking.current is not None:
                Parking.current.look()

    def _hear(self) -> None:
        parking = Parking.current
        for datagram in self._datagrams():
            with self._guard:
                if parking is not None and datagram:
                    parking.asked(datagram[1:].decode(), waits=datagram[:1] == WAITS)
        with self._guard:
            if parking is not None:
                parking.parked()

    def _datagrams(self) -> Iterator[bytes]:
        """What children have sent; empty ones are from the thread."""
        with suppress(BlockingIOError):
            for _ in range(READ_AT_ONCE):
                yield self._read.recv(100)
