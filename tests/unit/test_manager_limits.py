"""A task is woken at a limit before its earlier delivery has left the keys before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import pytest

from celery_dlock.core.state import Claim, Drop, Outcome, Park, Reason, WaitMode
from celery_dlock.locks.several import Refused
from celery_dlock.stores.base import Wake
from tests.services.faulty import KEEPING, Faulty, claims, taken

NARROW, WIDE = 2, 3


@pytest.fixture
def store() -> Iterator[Faulty]:
    store = Faulty()
    yield store
    store.abandon()


def asks(nonce: str, *, keep: bool = False) -> list[Claim]:
    """The claims of a delivery of one task: at a, which two may hold, and b, which three may."""
    narrow, wide = claims(keys="ab", wait=WaitMode.QUEUE, keep=keep)
    return [replace(wide, limit=WIDE, nonce=nonce), replace(narrow, limit=NARROW, nonce=nonce)]


@pytest.mark.parametrize("keep", [False, True])
def test_who_is_woken_before_its_forerunner_has_left_takes_nothing_away(
    store: Faulty, keep: bool
) -> None:
    # Given three that have all slots of the wide one, and one that waits behind them
    woken: list[tuple[str, str]] = []

    def wake(wakes: Sequence[Wake]) -> None:
        woken.extend((each.key, each.task) for each in wakes)

    others = [replace(claims(f"o{n}", "b")[0], limit=WIDE) for n in range(WIDE)]
    for other in others:
        store.enter(other)
    early, late = store.manager(wake), store.manager(wake)
    met: list[object] = []

    def is_overtaken(operation: str, key: str) -> None:
        if (operation, key) != ("leave", "a") or met:
            return
        # When its turn comes before it has left the narrow one
        met.append(None)
        early.take_back(others[:1])
        met[0] = late.acquire(asks("2", keep=keep), KEEPING, b"message", woken="b")

    store.fault = is_overtaken
    assert isinstance(early.acquire(asks("1", keep=keep), KEEPING, b"message"), Refused)

    # Then its second delivery leaves all as it is
    (answer,) = met
    assert isinstance(answer, Refused)
    assert (answer.claim.key, answer.verdict) == ("b", Drop(Reason.WAITING))
    assert [turn.task for turn in store.peek("b").grants] == ["t:0:0"]
    # And it is woken once more, at once or after some seconds, and has both
    if keep:
        store.clock.advance(6)
        wake(store.sweep().wakes)
    key, _ = woken[-1]
    lease = taken(late.acquire(asks("3", keep=keep), KEEPING, b"message", woken=key))
    assert lease.keys == ("a", "b")
    late.release(lease, Outcome.DONE)
    assert all("t:0:0" not in str(store.peek(key)) for key in "ab")


def test_while_it_waits_for_a_narrower_limit_it_has_no_turn_at_the_wider_one(
    store: Faulty,
) -> None:
    manager = store.manager(lambda wakes: None)
    others = [replace(claims(f"o{n}", "b")[0], limit=WIDE) for n in range(WIDE)]
    for other in others:
        store.enter(other)
    manager.acquire(asks("1"), KEEPING, b"message")
    # Given that what was reserved for it is another's now
    manager.take_back([replace(asks("1")[1], wait=WaitMode.NOT)])
    for n in range(NARROW):
        store.enter(replace(claims(f"n{n}", "a")[0], limit=NARROW))
    manager.take_back(others[:1])

    answer = manager.acquire(asks("2"), KEEPING, b"message", woken="b")

    assert answer == Refused(asks("2")[1], Park())
    assert (store.peek("a").parked, store.peek("b").grants) == (1, ())
    # And who comes there next does not wait for it
    assert len(store.peek("b").holders) == WIDE - 1
