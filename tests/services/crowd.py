"""Many tasks that want several keys, over one store in memory: broker, workers and clock in play.

Every worker is a real :class:`~celery_dlock.locks.manager.LockManager`. Only one of them goes on at
a time, from one request to the store to the next, and a seed decides which: so whatever happens can
happen again. It decides what goes wrong, too: a worker is killed before or after a request, an
answer is lost, a message is delivered twice, or gets lost when it was woken; a task is revoked.
"""

from __future__ import annotations

import random
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from celery_dlock.core.access import Access, Keys
from celery_dlock.core.lease import SECOND, Lease
from celery_dlock.core.state import (
    Claim,
    Drop,
    End,
    Mode,
    Outcome,
    Park,
    WaitMode,
    task_id_of,
)
from celery_dlock.core.turns import expire
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.hold import to_release
from celery_dlock.locks.manager import Keeping, LockManager, Successor
from celery_dlock.locks.other_keys import RESERVED_FOR
from celery_dlock.locks.refused import Refused
from celery_dlock.messages.claims import claims_of
from celery_dlock.stores.base import BackendOptions, Wake
from celery_dlock.stores.memory import MemoryBackend
from celery_dlock.testing import ManualClock
from tests.services.monotonic import Monotonic

TTL = 30


class Killed(BaseException):
    """The worker is no more."""


@dataclass(frozen=True)
class Trouble:
    """How likely it is, for each request or message."""

    killed: float = 0.0
    answer_lost: float = 0.0
    delivered_twice: float = 0.0
    wake_lost: float = 0.0
    revoked: float = 0.0
    #: That nothing happens for two hours, where only something that is late is waited for.
    idle: float = 0.0


@dataclass(frozen=True)
class Then:
    """The task that goes on where another one ends, which keeps the keys that both have.

    It comes by the broker, as a retry; or its message waits at the head of a key, as the next step
    of a chain.
    """

    task: str
    at_head: bool = False


@dataclass(frozen=True)
class Delivery:
    task: str
    woken: str | None = None


@dataclass(eq=False)
class Worker:
    """One delivery at a time; ``pause`` is where others go on."""

    crowd: Crowd
    manager: LockManager = field(init=False)
    dead: bool = False
    busy: bool = False
    in_body: bool = False

    def __post_init__(self) -> None:
        self.manager = LockManager(self, self._wake, monotonic=Monotonic())  # type: ignore[arg-type]
        self.unheard: list[Callable[[], object]] = []
        pending: Any = self.manager._pending_releases
        pending.retry = lambda _, release, key="": self.unheard.append(release)
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.crowd.store, name)

    # The store, as this worker reaches it.

    def enter(self, *asked: Any) -> Any:
        return self._request(self.crowd.store.enter, *asked)

    def leave(self, *asked: Any) -> Any:
        return self._request(self.crowd.store.leave, *asked)

    def look(self, *asked: Any) -> Any:
        return self._request(self.crowd.store.look, *asked)

    def parked(self, *asked: Any) -> Any:
        return self._request(self.crowd.store.parked, *asked)

    def message(self, *asked: Any) -> Any:
        return self._request(self.crowd.store.message, *asked)

    def _request(self, operation: Any, *asked: Any) -> Any:
        self.pause()
        self._may_die()
        reply = operation(*asked)
        self._may_die()
        if self.crowd.happens(self.crowd.trouble.answer_lost):
            raise BackendUnavailable("the answer is lost")
        return reply

    def _may_die(self) -> None:
        if self.dead:
            raise BackendUnavailable("whoever asks is dead")
        if self.crowd.happens(self.crowd.trouble.killed):
            self.dead = True
            self.crowd.killed += 1
            raise Killed

    def _wake(self, wakes: Sequence[Wake]) -> None:
        if not self.dead:
            self.crowd.publish(wakes)

    # Its thread.

    def begin(self, delivery: Delivery) -> None:
        self.busy = True
        threading.Thread(target=self._run, args=(delivery,), daemon=True).start()

    def step(self) -> None:
        """Go on until the next request."""
        self._go.release()
        self._back.acquire()

    def pause(self) -> None:
        if self.busy and not self.dead:
            self._back.release()
            self._go.acquire()

    def _run(self, delivery: Delivery) -> None:
        self._go.acquire()
        try:
            self.crowd.deliver(self, delivery)
        except Killed:
            pass
        except BaseException as exc:  # an assertion: for whoever looks at the crowd
            self.crowd.failed = self.crowd.failed or exc
        if self.dead:  # late acknowledgement: the broker delivers it again
            self.crowd.broker.append(Delivery(delivery.task, delivery.woken))
            self.manager._keeper._watches.clear()
        self.busy = False
        self._back.release()


class Crowd:
    """``tasks`` are what each of them locks, by name.

    Keys are kept for those that come ``then``; ``overtaken`` are those of them that another task
    has come before, and ``unreserved`` those whose keys were given up. With ``slow_bodies`` no body
    goes on while anything else can.
    """

    def __init__(
        self,
        tasks: Mapping[str, Keys],
        *,
        workers: int = 8,
        seed: int = 0,
        trouble: Trouble | None = None,
        keep: Sequence[str] = (),
        then: Mapping[str, Then] | None = None,
        slow_bodies: bool = False,
    ) -> None:
        self.tasks, self.trouble, self.keep = tasks, trouble or Trouble(), keep
        self.then, self.reserved = then or {}, dict[str, set[str]]()
        self.unreserved, self.overtaken = set[str](), set[str]()
        self.slow_bodies = slow_bodies
        self.random = random.Random(seed)
        self.clock = ManualClock()
        self.store = MemoryBackend(BackendOptions(clock=self.clock))
        follow = {then.task for then in self.then.values()}
        self.broker = [Delivery(task) for task in tasks if task not in follow]
        self.workers = [Worker(self) for _ in range(workers)]
        self.running: list[str] = []
        self.began_with: dict[str, Keys] = {}
        self.done: list[str] = []
        self.revoked: set[str] = set()
        self.wakes: Counter[str] = Counter()
        self.killed = 0
        self.failed: BaseException | None = None
        self._nonces = iter(range(10**9))

    def happens(self, likely: float) -> bool:
        return likely > 0 and self.random.random() < likely

    def publish(self, wakes: Sequence[Wake]) -> None:
        for wake in wakes:
            self.wakes[wake.task] += 1
            if not self.happens(self.trouble.wake_lost):
                self.broker.append(Delivery(wake.task, wake.key))

    def deliver(self, worker: Worker, delivery: Delivery) -> None:
        """As ``delivery/taking.py`` has it."""
        task, manager = delivery.task, worker.manager
        keys = self.tasks[task]
        if task not in self.running:
            self.began_with[task] = keys
        terms = {
            "task": task,
            "nonce": f"n{next(self._nonces)}",
            "ttl": TTL * SECOND,
            "wait": WaitMode.QUEUE,
            "done_ttl": 86_400 * SECOND,
            "keep": task in self.keep,
        }
        claims = claims_of(keys, terms)
        keeping = Keeping(None, lambda term, why: None)
        try:
            reserved = self._common(task)
            answer = manager.acquire(
                claims, keeping, b"message", delivery.woken, keys.parents, reserved
            )
        except BackendUnavailable:
            self.broker.append(Delivery(task))
            return
        if isinstance(answer, Lease):
            self._body(worker, task)
            self.done.append(task)
            with suppress(BackendUnavailable):
                manager.release(answer, Outcome.DONE, successor=self._goes_on(worker, task))
        elif isinstance(answer.verdict, End):
            self.revoked.add(task)
            manager.take_back(to_release(answer, claims), Outcome.DONE)
        elif not isinstance(answer.verdict, Park | Drop):
            self.broker.append(Delivery(task))
        if isinstance(answer, Refused) and answer.unreserved:
            self.unreserved.add(task)
        while worker.unheard and not worker.dead:
            with suppress(BackendUnavailable):
                worker.unheard[0]()
                worker.unheard.pop(0)

    def _common(self, task: str) -> set[str]:
        """The keys that are kept for *task* by the one before it, if one is."""
        before = next((t for t, then in self.then.items() if then.task == task), None)
        if before is None:
            return set()
        mine, theirs = self.tasks[task].access, self.tasks[before].access
        both = {key for key in mine if key in theirs and mine[key].mode is theirs[key].mode}
        return {key for key in both if mine[key].mode is not Mode.SHARED}

    def _goes_on(self, worker: Worker, task: str) -> Successor | None:
        then = self.then.get(task)
        if then is None:
            return None
        kept = self._common(then.task)
        alone = {key for key in kept if self.tasks[task].access[key].mode is Mode.EXCLUSIVE}
        self.reserved[then.task] = alone
        if then.at_head and alone:
            claim = Claim(min(alone), then.task, "", 0, wait=WaitMode.HEAD, ordered=True)
            worker.enter(claim, b"message")
        else:
            self.broker.append(Delivery(then.task))
        return Successor(then.task, dict.fromkeys(kept, RESERVED_FOR))

    def _body(self, worker: Worker, task: str) -> None:
        self.reserved.pop(task, None)
        own = set(self.tasks[task].own)
        self.overtaken |= {kept_for for kept_for, keys in self.reserved.items() if keys & own}
        self.running.append(task)
        worker.in_body = True
        try:
            self._check_limits()
            for _ in range(3):
                worker.pause()
                worker._may_die()
        finally:
            self.running.remove(task)
            worker.in_body = False

    def _check_limits(self) -> None:
        for key in {key for task in self.running for key in self.tasks[task].all}:
            on_it = [self.access(task, key) for task in self.running if key in self.tasks[task].all]
            writes = [access for access in on_it if access.mode is not Mode.SHARED]
            assert len(writes) <= max((a.limit for a in writes), default=0), key
            assert not writes or len(writes) == len(on_it), key

    def access(self, task: str, key: str) -> Access:
        """As the task began, or else would begin now: limits may change meanwhile."""
        keys = self.began_with[task] if task in self.running else self.tasks[task]
        return keys.access.get(key, Access(Mode.SHARED))

    def waiting(self) -> list[str]:
        """Those of which a body could begin, as far as those that run now are concerned."""
        begun = {*self.done, *self.running}
        return [task for task in self.tasks if task not in begun]

    def could_run(self, task: str) -> bool:
        """Whether those that run leave each of its keys to it, if nobody has a turn there."""
        for key in self.tasks[task].all:
            beside = [self.access(t, key) for t in self.running if key in self.tasks[t].all]
            mine = self.access(task, key)
            if any(a.mode is not mine.mode for a in beside):
                return False
            if mine.mode is not Mode.SHARED and len(beside) >= mine.limit:
                return False
        return True

    def play(self) -> Iterator[bool]:
        """Until nothing is left to do; yields whether all is quiet but for the bodies."""
        self.clock.advance(1)
        while self.failed is None:
            free = [w for w in self.workers if not (w.busy or w.dead)]
            if len(free) < len(self.workers) and len([w for w in self.workers if not w.dead]) < 4:
                self.workers.append(Worker(self))
            if self.broker and free and (self.slow_bodies or self.happens(0.5)):
                at = self.random.randrange(len(self.broker)) if self.trouble.killed else 0
                delivery = self.broker.pop(at)
                if self.happens(self.trouble.delivered_twice):
                    self.broker.append(Delivery(delivery.task, delivery.woken))
                free[0].begin(delivery)
                self._perhaps_revoke()
            busy = [w for w in self.workers if w.busy]
            if busy:
                at_once = [w for w in busy if not w.in_body]
                self.random.choice(at_once if self.slow_bodies and at_once else busy).step()
                yield not self.broker and all(w.in_body for w in self.workers if w.busy)
            elif not self.broker and not self._time_passes():
                break
        if self.failed is not None:
            raise self.failed

    def _perhaps_revoke(self) -> None:
        if self.happens(self.trouble.revoked):
            task = self.random.choice(list(self.tasks))
            for key, _ in self.store.parked([task_id_of(task)]):
                self.publish(self.store.cancel(key, task).wakes)

    def _time_passes(self) -> bool:
        swept = self.store.sweep()
        self.publish(swept.wakes)
        if swept.wakes:
            return True
        if swept.next_in is None:
            return False
        self.clock.advance(swept.next_in + (7_200 if self.happens(self.trouble.idle) else 0.001))
        return True

    def left(self, after: float = 0) -> list[str]:
        """Keys of which somebody still has something in so many seconds."""
        self.clock.advance(after)
        keys = {key for task in self.tasks.values() for key in task.all}
        states = {key: expire(self.store.peek(key), self.clock.now) for key in keys}
        return [k for k, s in states.items() if s.holders or s.grants or s.waiting]

    def close(self) -> None:
        for worker in self.workers:
            worker.manager._keeper._watches.clear()
            worker.manager._keeper.close()


def keys(wanted: Mapping[str, int], *, limited: bool = False) -> Keys:
    """``keys({"order": 1, "tenant": 3, "catalog": 0})``: how many may hold each, 0 for readers.

    If it is *limited*, 1 is a limit, too.
    """
    modes = {0: Mode.SHARED} if limited else {0: Mode.SHARED, 1: Mode.EXCLUSIVE}
    asked = [(k, Access(modes.get(n, Mode.LIMITED), n or 1)) for k, n in wanted.items()]
    return Keys.of(asked)
