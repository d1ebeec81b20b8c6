"""A hold from the asking to the giving back: what is owed in between, and what is told of it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core.events import (
    Acquired,
    Confirmed,
    Event,
    Lost,
    Released,
    Subject,
    Unavailable,
    Uncertain,
)
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Ending,
    Holder,
    Mode,
    Outcome,
    Park,
    Reason,
    Same,
    WaitMode,
)
from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.hold import Hold, to_release
from celery_dlock.locks.refused import Refusal, Refused
from celery_dlock.stores.memory import MemoryBackend
from tests.services.faulty import KEEPING, KEYS, TTL, Faulty, TimeLimit, claims, taken, watched

SUBJECT = Subject("id", "charge", "order:{order}")


class Told:
    """What listeners hear of a hold, and in which order."""

    def __init__(self, store: Faulty) -> None:
        self.store = store
        self.manager = store.manager()
        self.events: list[Event | str] = []

    def hold(self, **options: Any) -> Hold:
        return Hold(self.manager, self.events.append, SUBJECT, **options)

    def kinds(self) -> list[Any]:
        return [event if isinstance(event, str) else type(event) for event in self.events]


@pytest.fixture
def told(store: Faulty) -> Told:
    return Told(store)


def begun(hold: Hold) -> Lease:
    lease = taken(hold.ask(claims()))
    hold.taken(lease, took=0.5)
    return lease


def forgets(store: Faulty, key: str) -> None:
    (claim,) = claims(keys=key)
    MemoryBackend.leave(store, claim, Outcome.OVER)


def away(operation: str, key: str) -> None:
    raise BackendUnavailable("no answer")


def test_what_was_asked_for_is_owed_until_it_is_given_back(told: Told) -> None:
    hold = told.hold()
    owed: list[int] = []
    told.store.late = lambda operation, key: owed.append(len(hold.claims))
    hold.ask(claims())
    assert owed == [3, 3, 3], "written down before the store heard of it"
    # As if a time limit had struck before the lease was taken note of
    hold.give_back(Outcome.OVER)
    assert hold.claims == ()
    assert told.store.held() == watched(told.manager) == set()
    assert told.events == []


def test_of_what_was_refused_nothing_is_owed_but_what_the_store_has_or_the_holder_says(
    told: Told,
) -> None:
    taken(told.manager.acquire(claims("other", "b"), KEEPING))
    hold = told.hold()
    answer = hold.ask(claims())
    assert isinstance(answer, Refused)
    assert hold.claims == ()
    hold.claims = (answer.claim,)
    told.store.calls.clear()
    hold.give_back(Outcome.OVER)
    assert told.store.calls == [("leave", "b")]


HOLDER, OWN = (Holder(t, "nonce", Mode.EXCLUSIVE, 1, 0, 7, 5, 0) for t in ("other", "id:1:0"))
TAKEN, RESERVED = Busy(HOLDER, left=4, parked=2, full=True), Busy(None, left=0, parked=1)
HERE, FIRST = Claim("b", "id:0:0", "mine", 1, done_ttl=1), Claim("a", "id:0:0", "mine", 1)

#: Whether the key that refuses has something of the task, for which it is told of its end.
HAS_SOMETHING: list[tuple[Refusal, WaitMode, bool]] = [
    *((End(ending), wait, True) for ending in Ending for wait in WaitMode),
    *((Park(), wait, True) for wait in WaitMode),
    *((busy, WaitMode.PLACE, True) for busy in (TAKEN, RESERVED, Busy(OWN, 0, 0))),
    *((TAKEN, wait, False) for wait in WaitMode if wait is not WaitMode.PLACE),
]


def test_the_store_is_owed_the_end_where_it_has_something_and_at_the_first_key() -> None:
    for answer, wait, something in HAS_SOMETHING:
        here = replace(HERE, wait=wait)
        refusal, forgets = Refused(here, answer), Refused(replace(here, done_ttl=0), answer)
        left = (here,) if something else ()
        assert to_release(refusal, [here, FIRST]) == (FIRST, *left), answer
        assert to_release(refusal, [here]) == (here,), answer
        without = (forgets.claim,) if something else ()
        assert to_release(forgets, [FIRST]) == without, answer


@pytest.mark.parametrize("answer", [Same(OWN, 0), *(Drop(reason) for reason in Reason)], ids=repr)
def test_a_duplicate_owes_nothing_for_its_task_does_not_end_with_it(answer: Refusal) -> None:
    assert to_release(Refused(HERE, answer), [FIRST, HERE]) == ()


def test_it_is_told_that_it_is_taken_and_released(told: Told) -> None:
    hold = told.hold()
    lease = begun(hold)
    assert told.store.held() == set(KEYS)
    hold.give_back(Outcome.DONE)

    acquired, released = told.events
    assert isinstance(acquired, Acquired)
    assert (acquired.subject, acquired.keys, acquired.took) == (SUBJECT, KEYS, 0.5)
    assert acquired.tokens == tuple(lease.fencing_tokens.values())
    assert isinstance(released, Released)
    assert (released.keys, released.outcome) == (KEYS, Outcome.DONE)
    assert told.store.held() == watched(told.manager) == set()
    assert hold.lease is None
    assert lease.lost


def test_what_is_to_be_repeated_is_owed_still(told: Told) -> None:
    hold = told.hold()
    begun(hold)
    hold.give_back(Outcome.REPEAT)
    assert [claim.key for claim in hold.claims] == list(KEYS)


def test_a_loss_strikes_and_is_told_and_then_acted_upon_once(told: Told) -> None:
    hold = told.hold(
        strike=lambda key, reason: told.events.append(f"strike {key}"),
        after_loss=lambda lease: told.events.append("after"),
    )
    lease = begun(hold)
    # The keeper's side tells it, while the body runs
    lease.terms[1].lose("gone")
    hold._lost(lease.terms[1], "gone")
    assert told.kinds() == [Acquired, "strike b", Lost, "after"]
    # The end what shows only then
    forgets(told.store, "c")
    hold.give_back(Outcome.DONE)
    assert told.kinds()[4:] == [Released, Lost, "after"]
    assert [event.key for event in told.events if isinstance(event, Lost)] == ["b", "c"]


@pytest.mark.parametrize("ends_once", [False, True])
def test_an_uncertain_lock_is_told_while_its_body_runs(told: Told, ends_once: bool) -> None:
    hold = told.hold(ends_once=ends_once)
    lease = begun(hold)
    hold._doubt(lease.terms[1], uncertain=True)
    hold._doubt(lease.terms[1], uncertain=False)
    hold.give_back(Outcome.DONE)
    hold._doubt(lease.terms[0], uncertain=True)

    assert told.kinds() == [Acquired, Uncertain, Confirmed, Released]
    uncertain = told.events[1]
    assert isinstance(uncertain, Uncertain)
    assert uncertain.key == "b"
    assert 0 < uncertain.left < TTL


def test_a_release_that_was_interrupted_is_said_again_and_no_loss(told: Told) -> None:
    hold = told.hold()
    begun(hold)

    def struck(operation: str, key: str) -> None:
        if operation == "leave" and key == "b":
            told.store.late = lambda operation, key: None
            raise TimeLimit

    told.store.late = struck
    with pytest.raises(TimeLimit):
        hold.give_back(Outcome.DONE)
    assert hold.lease is not None
    hold.give_back(Outcome.DONE)
    assert told.store.held() == set()
    assert told.kinds() == [Acquired, Released]


def test_what_an_interrupted_release_has_given_up_is_no_loss_whatever_the_store_says_then(
    told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold = told.hold()
    lease = begun(hold)
    release = told.manager.release

    def struck(*arguments: Any) -> bool:
        monkeypatch.setattr(told.manager, "release", heard_nothing_of_it)
        release(*arguments)
        raise TimeLimit

    def heard_nothing_of_it(*arguments: Any) -> bool:
        lease.terms[0].lose("the store had given it up")
        return False

    monkeypatch.setattr(told.manager, "release", struck)
    with pytest.raises(TimeLimit):
        hold.give_back(Outcome.DONE)
    hold.give_back(Outcome.DONE)
    assert told.kinds() == [Acquired, Released]


def test_that_the_store_does_not_answer_is_told_instead(told: Told) -> None:
    hold = told.hold()
    lease = begun(hold)
    told.store.fault = away
    assert hold.give_back(Outcome.DONE) is False
    assert told.kinds() == [Acquired, Unavailable]
    assert lease.lost


@pytest.mark.parametrize("end", ["released", "lost before", "lost unnoticed", "unheard"])
def test_one_that_ends_once_says_so_in_the_end(told: Told, end: str) -> None:
    hold = told.hold(ends_once=True)
    lease = taken(hold.ask(claims(keys="a")))
    hold.taken(lease, took=0.0)
    told.store.fault = lambda operation, key: told.events.append(operation)
    if end == "lost before":
        lease.terms[0].lose("gone")
        hold._lost(lease.terms[0], "gone")
    elif end == "lost unnoticed":
        forgets(told.store, "a")
    elif end == "unheard":
        told.store.fault = away
    assert told.kinds() == [Acquired]
    hold.give_back(Outcome.OVER)
    assert (
        told.kinds()[1:]
        == {
            "released": ["leave", Released],
            "lost before": [Lost, "leave"],
            "lost unnoticed": ["leave", Lost],
            "unheard": [Lost],
        }[end]
    )


def test_a_forked_child_frees_nothing_of_its_parent(told: Told) -> None:
    hold = told.hold()
    begun(hold)
    told.manager.after_fork_in_child()
    hold.give_back(Outcome.DONE)
    assert told.store.held() == set(KEYS)
