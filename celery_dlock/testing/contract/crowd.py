"""Many at once: forty real threads on one key."""

from __future__ import annotations

import threading
import time

from celery_dlock.core.state import Busy, EnterVerdict, Outcome, Park, Run
from celery_dlock.stores.base import LockBackend, Reply
from celery_dlock.testing.contract.words import (
    QUEUE,
    StoreUnderTest,
    at_once,
    claim,
    running,
    woken,
)

THREADS = 40
TURNS = 5
STALLED = 3.0


class Turns:
    """Threads that pass a key on through its queue, and count without a lock of their own."""

    def __init__(self, backend: LockBackend) -> None:
        self._backend = backend
        self._called = {f"{n}:{t}": threading.Event() for n in range(THREADS) for t in range(TURNS)}
        self._inside = 0
        self.most = 0
        self.count = 0

    def work(self, number: int) -> None:
        for turn in range(TURNS):
            mine = claim(f"{number}:{turn}", wait=QUEUE, ttl=3600)
            reply = self._backend.enter(mine, b"message")
            while isinstance(reply.verdict, Park):
                self._call(reply)
                self._wait(mine.task)
                reply = self._backend.enter(mine, b"message")
            running(reply)
            self._increment()
            self._call(self._backend.leave(mine, Outcome.DONE))

    def _increment(self) -> None:
        self._inside += 1
        self.most = max(self.most, self._inside)
        seen = self.count
        time.sleep(0)  # let the others in, if the store does
        self.count = seen + 1
        self._inside -= 1

    def _wait(self, task: str) -> None:
        seen = -1
        while not self._called[task].wait(STALLED):
            assert self.count > seen, f"{task} waits, and nobody is woken any more"
            seen = self.count

    def _call(self, reply: Reply[object]) -> None:
        for task in woken(reply):
            self._called[task].set()


class Crowd(StoreUnderTest):
    def test_of_forty_threads_exactly_one_gets_the_key(self, backend: LockBackend) -> None:
        for turn in range(TURNS):

            def enter(number: int, turn: int = turn) -> EnterVerdict:
                return backend.enter(claim(f"{number}:{turn}")).verdict

            verdicts = at_once(THREADS, enter)

            assert sum(isinstance(v, Run) for v in verdicts) == 1
            assert sum(isinstance(v, Busy) for v in verdicts) == THREADS - 1
            (holder,) = backend.peek("key").holders
            backend.leave(claim(holder.task), Outcome.DONE)

    def test_of_forty_threads_exactly_three_get_three_slots(self, backend: LockBackend) -> None:
        verdicts = at_once(THREADS, lambda n: backend.enter(claim(str(n), limit=3)).verdict)

        given = [v for v in verdicts if isinstance(v, Run)]
        assert sorted(v.slot for v in given) == [0, 1, 2]
        assert len({v.token for v in given}) == 3

    def test_forty_threads_lose_no_update_of_an_unlocked_counter(
        self, backend: LockBackend
    ) -> None:
        turns = Turns(backend)

        at_once(THREADS, turns.work)

        assert turns.most == 1
        assert turns.count == THREADS * TURNS
