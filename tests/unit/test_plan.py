"""What a delivery comes to that does not run: every answer of the store, and every decision."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from celery_dlock.core import events
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import (
    Busy,
    Claim,
    Drop,
    End,
    Ending,
    Holder,
    Mode,
    Park,
    Reason,
    Same,
)
from celery_dlock.delivery.plan import (
    Facts,
    FailWith,
    Finish,
    Gone,
    Plan,
    Repeat,
    Resend,
    Revoke,
    contention,
    lost,
    plan,
    repeated,
    replaced,
    unanswered,
)
from celery_dlock.errors import (
    BackendUnavailable,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)
from celery_dlock.locks.refused import Refusal, Refused
from celery_dlock.messages.headers import History
from celery_dlock.policies import Complete, Decision, GiveUp, RunLater, WaitHere
from celery_dlock.policies.base import Contention, HolderInfo
from celery_dlock.policies.shipped import Fail, Queue, Reschedule, Wait

KEY = "order:42"
SUBJECT = events.Subject("id", "charge", "order:{order}")
PAST = History("id:0:0", waits=3, since=10.0, unavailable=1, lost=2)
FACTS = Facts(
    SUBJECT, PAST, eager=False, queues=False, since=10.0, waited=7.0, policy=Queue(max_wait=7)
)
EAGER = replace(FACTS, eager=True)


def holder(task: str) -> Holder:
    return Holder(task, "nonce", Mode.EXCLUSIVE, 1, 0, 7, since=5_000_000, expires=0)


OTHER, OWN = holder("other:0:0"), holder("id:1:0")
HELD = Busy(OTHER, left=4_000_000, parked=2, full=True)
RESERVED = Busy(None, left=0, parked=1)

#: Every answer but that the key is given, and none twice.
ANSWERS: list[Refusal] = [
    *(Drop(reason) for reason in Reason),
    *(End(ending) for ending in Ending),
    End(Ending.DROPPED, by="newer:0:0"),
    *(Park(), Same(OWN, 90_000_000), Busy(OWN, 0, 0), HELD, RESERVED),
]

RESULT = Complete({"skipped": True}, then="continue")
BROKEN = ValueError("broken")
LATE = LockTimeout(KEY, "other", 4.0, 7.0)
DECISIONS: list[Decision] = [RESULT, GiveUp(BROKEN), GiveUp(LATE), RunLater(2.0), WaitHere(3.0)]


def refused(verdict: Refusal, **options: Any) -> Refused:
    return Refused(Claim(KEY, "id:0:0", "mine", ttl=1, done_ttl=1, **options), verdict)


def simply(found: Plan | WaitHere) -> Any:
    """*found* to be compared: errors are equal that look the same, whichever object they are."""
    match found:
        case FailWith(error=error, event=event, gives_back=gives_back):
            return ("fail", repr(error), event, gives_back)
        case Resend(ends=Exception() as error):
            return replace(found, ends=repr(error))
        case _:
            return found


def fails(error: Exception, event: events.Event | None = None, *, gives_back: bool = True) -> Any:
    return simply(FailWith(error, event, gives_back=gives_back))


TAKEN = LockContended(KEY, "other", 4.0, by="task other")
RESERVED_FOR_ANOTHER = LockContended(KEY, None, 0.0)
LOOKS = Resend(
    1.0, PAST, "this task is running", "another delivery of this task is running", bounded=True
)
DEAD = LockLost(KEY, f"so were {MAX_LOST_RUNS} of its runs; its message is a dead letter")
DEAD_LETTERED = events.DeadLettered(SUBJECT, KEY, "runs lost")
TIMED_OUT = events.TimedOut(SUBJECT, KEY, 7.0)
REPLACED = Complete(
    {
        "skipped": True,
        "key": KEY,
        "holder": None,
        "since": None,
        "reason": "a newer call has replaced it in the queue",
    }
)

REPLACED_WHILE_IT_RAN = Complete(
    {**REPLACED.result, "holder": "newer", "reason": "replaced by newer"}
)
GAVE_WAY = Finish(REPLACED_WHILE_IT_RAN, events.Skipped(SUBJECT, KEY, "newer", "replaced by newer"))

#: What is the same whether the task runs eagerly or not, and whatever a policy might say.
ANSWERED: dict[Refusal, Any] = {
    Drop(Reason.DEAD): fails(DEAD, DEAD_LETTERED),
    Drop(Reason.DONE): Gone(
        "a duplicate of a task that is already done", events.Dropped(SUBJECT, KEY, "done")
    ),
    Drop(Reason.WAITING): Gone(
        "a duplicate of a task that is already waiting",
        events.Dropped(SUBJECT, KEY, "waiting"),
        parked=True,
    ),
    Park(): Gone(
        f"waits for {KEY} in the lock store",
        events.Parked(SUBJECT, KEY, refused=True),
        parked=True,
    ),
    End(Ending.TIMED_OUT): fails(
        LockTimeout(KEY, waited=7.0, limit="max_wait=7 of Queue"), TIMED_OUT
    ),
    End(Ending.REVOKED): Revoke(events.Revoked(SUBJECT, KEY)),
    End(Ending.DROPPED): Finish(
        REPLACED, events.Skipped(SUBJECT, KEY, None, REPLACED.result["reason"])
    ),
    End(Ending.DROPPED, by="newer:0:0"): GAVE_WAY,
    Busy(OWN, 0, 0): LOOKS,
}


def rescheduled(error: LockContended) -> Any:
    past = replace(PAST, waits=4, since=10.0)
    return simply(Resend(2.0, past, error.why, error, bounded=False))


#: What it comes to when the policy has said so, in a worker and eagerly.
DECIDED: dict[tuple[Refusal, int], tuple[Any, Any]] = {
    (busy, number): found
    for busy, who, error in [(HELD, "other", TAKEN), (RESERVED, None, RESERVED_FOR_ANOTHER)]
    for number, found in enumerate(
        [
            (Finish(RESULT, events.Skipped(SUBJECT, KEY, who, by=f"task {who}" if who else "")),)
            * 2,
            (fails(BROKEN),) * 2,
            (fails(LATE, TIMED_OUT),) * 2,
            (rescheduled(error), fails(error)),
            (WaitHere(3.0), fails(error)),
        ]
    )
}


@pytest.mark.parametrize("decision", DECISIONS[:3], ids=repr)
def test_the_task_that_published_it_is_no_reason_to_refuse_it(decision: Decision) -> None:
    follows = replace(FACTS, follows=True, waited=0.25)
    reason = "the task that published it has the key"

    assert plan(follows, refused(HELD), decision) == WaitHere(0.75)
    later = plan(replace(follows, waited=1.0), refused(HELD), decision)
    assert later == Resend(4.0, PAST, reason, reason)


@pytest.mark.parametrize("facts", [FACTS, EAGER], ids=["in a worker", "eagerly"])
@pytest.mark.parametrize("answer", ANSWERS, ids=repr)
def test_each_answer_comes_to_what_the_table_says(answer: Refusal, facts: Facts) -> None:
    asked = contention(facts, refused(answer)) is not None
    if facts.eager and answer == Busy(OWN, 0, 0):  # which only shares its id
        assert asked
        assert simply(plan(facts, refused(answer), RunLater(2.0))) == fails(
            LockContended(KEY, "id", 0.0, by="task id")
        )
        return
    assert asked == (answer in (HELD, RESERVED))
    for number, decision in enumerate(DECISIONS if asked else [None]):
        found = simply(plan(facts, refused(answer), decision))
        if asked:
            assert found == DECIDED[answer, number][facts.eager]
        elif isinstance(answer, Same):
            own = fails(LockContended(KEY, "id", 90.0, by="task id"))
            assert found == (own if facts.eager else replace(LOOKS, countdown=60.0))
        else:
            assert found == ANSWERED[answer]


def test_the_policy_is_told_who_has_the_key_and_how_long_it_was_waited_for() -> None:
    found = contention(FACTS, refused(HELD))
    assert found is not None
    assert (found.key, found.task_id, found.attempt, found.waited) == (KEY, "id", 3, 7.0)
    assert (found.waiting, found.full) == (2, True)
    assert found.holder is not None
    assert found.holder == HolderInfo("other", 5.0, 4.0, "task other")
    reserved = contention(FACTS, refused(RESERVED))
    assert reserved is not None
    assert reserved.holder is None


def test_without_an_answer_it_waits_in_the_broker_and_an_eager_one_fails() -> None:
    error = BackendUnavailable("no answer")
    event = events.Unavailable(SUBJECT, "no answer")
    failed = fails(error, event, gives_back=False)
    assert simply(unanswered(replace(FACTS, eager=True), error, _half)) == failed
    again = Resend(1.0, replace(PAST, unavailable=2), "no answer", error, event)
    assert simply(unanswered(FACTS, error, _half)) == simply(again)


LOST, STALE = LockLost(KEY, "gone"), StaleFencingToken("table", 1, 2)


@pytest.mark.parametrize(
    ("error", "event"), [(LOST, None), (STALE, events.StaleRejected(SUBJECT, "table", 1))]
)
def test_a_lost_lock_is_no_failure_unless_it_is_lost_again_and_again(
    error: LockLost | StaleFencingToken, event: events.Event | None
) -> None:
    assert lost(FACTS, error) == Repeat(error, event)
    assert simply(lost(EAGER, error)) == fails(error, event)
    too_often = replace(FACTS, history=replace(PAST, lost=MAX_LOST_RUNS))
    assert simply(lost(too_often, error)) == fails(error, event)


def test_one_that_was_replaced_ends_as_skipped_and_a_write_that_was_refused_is_told() -> None:
    assert replaced(FACTS, KEY, "newer", LOST) == GAVE_WAY
    stale = events.StaleRejected(SUBJECT, "table", 1)
    assert replaced(FACTS, KEY, "newer", STALE) == replace(GAVE_WAY, event=stale)


@pytest.mark.parametrize("queues", [False, True])
@pytest.mark.parametrize("carried", [False, True])
def test_what_runs_again_is_published_or_in_the_store(queues: bool, carried: bool) -> None:
    found = repeated(replace(FACTS, queues=queues), LOST, _half, carried=carried)
    if queues and carried:
        assert found == Gone(f"{LOST}; the lock store has its message", parked=True)
        return
    assert isinstance(found, Resend)
    assert (found.countdown, found.history) == (2.0, replace(PAST, lost=3))
    assert found.ends == (f"{LOST}; another delivery of this task has it" if carried else LOST)


def _half() -> float:
    return 0.5


@pytest.mark.parametrize(
    ("policy", "limit"),
    [
        (Reschedule(max_wait=3600), "max_wait=3600 of Reschedule"),
        (Reschedule(max_attempts=3, max_wait=None), "max_attempts=3 of Reschedule"),
        (Wait(), "timeout=5 of Wait"),
        (Queue(max_wait=60), "max_wait=60 of Queue"),
    ],
    ids=repr,
)
def test_who_gives_up_names_the_limit_and_who_has_the_key(policy: Any, limit: str) -> None:
    by = "shop.charge[other] on celery@one:4711"
    asked = Contention(KEY, "id", 3, 3600.0, HolderInfo("other", 5.0, 4.0, by), 0)

    late, refused = policy.decide(asked).error, Fail().decide(asked)

    assert (type(late), late.limit, late.by) == (LockTimeout, limit, by)
    assert isinstance(refused, GiveUp)
    assert repr(refused.error) == repr(LockContended(KEY, "other", 4.0, by=by))
