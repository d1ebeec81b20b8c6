"""Who gets the next free slot, on the semaphore that Celery gives its slots with."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count, islice
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from celery_dlock.worker.woken import ByTurns, StartByTurns


@dataclass(frozen=True)
class Asking:
    """Stands for a request."""

    name: str
    woken: bool


def woken(*names: object) -> Iterator[Asking]:
    return (Asking(str(name), woken=True) for name in names)


def others(*names: object) -> Iterator[Asking]:
    return (Asking(str(name), woken=False) for name in names)


class Pool:
    """Slots that are taken in turns; ``began`` says by whom, in order."""

    def __init__(self, slots: int) -> None:
        self.semaphore = LaxBoundedSemaphore(slots)
        self.began: list[str] = []
        self.running: list[Asking] = []
        StartByTurns(self).create(self)

    def ask(self, asking: Asking) -> None:
        self.semaphore.acquire(self._begin, asking)

    def _begin(self, asking: Asking) -> None:
        self.began.append(asking.name)
        self.running.append(asking)

    def end(self) -> Asking:
        """The oldest that runs ends."""
        ended = self.running.pop(0)
        self.semaphore.release()
        return ended


def test_the_oldest_of_each_kind_go_by_turns_and_where_one_has_any_that_one() -> None:
    pool = Pool(1)
    for asking in (*others("runs", *"abcd"), *woken(1, 2)):
        pool.ask(asking)
    while pool.running:
        pool.end()
    assert pool.began == ["runs", "1", "a", "2", "b", "c", "d"]
    assert pool.semaphore.value == 1


def test_who_waits_as_it_is_put_in_stays_and_all_can_be_wiped() -> None:
    slots = LaxBoundedSemaphore(1)
    began: list[Asking] = []
    for asking in (*others("runs", "a"), *woken(1)):
        slots.acquire(began.append, asking)
    parent = SimpleNamespace(semaphore=slots)

    StartByTurns(parent).create(parent)

    assert len(slots._waiting) == 2
    slots.release()
    assert [asking.name for asking in began] == ["runs", "1"]
    slots.clear()
    slots.release()
    assert (len(slots._waiting), len(began), slots.value) == (0, 2, 1)


@pytest.mark.parametrize("worker", [SimpleNamespace(semaphore=None), SimpleNamespace()])
def test_a_worker_without_such_slots_is_left_as_it_is(worker: Any) -> None:
    before = dict(vars(worker))
    StartByTurns(worker).create(worker)
    assert vars(worker) == before


def test_a_waiter_that_is_no_request_waits_among_the_others() -> None:
    line = ByTurns([(print, (), {}), (print, ("text",), {})])
    assert [line.popleft()[1], line.popleft()[1]] == [(), ("text",)]
    with pytest.raises(IndexError):
        line.popleft()


@pytest.mark.parametrize("slots", [1, 4])
@pytest.mark.parametrize("times", [1, 2, 3])
def test_with_more_hot_keys_than_slots_each_key_and_all_others_run(slots: int, times: int) -> None:
    pool, keys, plain = Pool(slots), slots * times, count()
    for number in islice(plain, 4 * slots):
        pool.ask(Asking(f"plain {number}", woken=False))
    for asking in woken(*range(keys)):
        pool.ask(asking)

    for _ in range(1000):
        ended = pool.end()
        pool.ask(ended if ended.woken else Asking(f"plain {next(plain)}", woken=False))

    runs = Counter(pool.began)
    shares = [runs[str(key)] for key in range(keys)]
    assert max(shares) - min(shares) <= 1
    assert 0.45 < sum(shares) / len(pool.began) < 0.55
    plains = [name for name in pool.began if name.startswith("plain")]
    assert plains == sorted(plains, key=lambda name: int(name.split()[1]))
