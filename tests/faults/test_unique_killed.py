"""A unique task whose worker or publisher is killed: it runs, and its claim does not outlive it.

Where a broker has the message, it comes again. Where nobody has it any more, the claim blocks calls
for no longer than the lock store shows its task, or for a minute where it never did.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from celery_dlock.core.unique import UniqueClaim
from celery_dlock.runtime import runtime
from celery_dlock.testing.contract.words import at_once
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services import faults
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.publisher import publishing
from tests.services.redelivery import deliver_again, work_off
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

PUBLISH = "kombu.messaging:Producer._publish"
CALL = "celery_dlock.locks.unique:UniqueClaims.call"
MEET = "celery_dlock.locks.unique:UniqueClaims.meet"
BEGIN = "celery_dlock.locks.unique:UniqueClaims.begin"
END = "celery_dlock.locks.unique:UniqueClaims.end"
BODY = "tests.services.effects:Effects.pay"
RESULT = "celery.backends.base:Backend.mark_as_done"
LEAVE = "celery_dlock.stores.redis.store:RedisBackend.leave"

PLACES = [
    pytest.param("done", "before", MEET, id="between the lock and the claim"),
    pytest.param("done", "after", MEET, id="between the claim and the body"),
    pytest.param("start", "before", BEGIN, id="before it has started"),
    pytest.param("start", "after", BEGIN, id="as it has started"),
    pytest.param("start", "before", BODY, id="in the body that it was unique until"),
    pytest.param("done", "after", RESULT, id="between the result and the claim"),
    pytest.param("done", "after", END, id="between the claim and the leave"),
    pytest.param("done", "after", LEAVE, id="between the leave and the acknowledgement"),
]


def claim(lab: Lab, task: str, *args: Any) -> UniqueClaim | None:
    unique = lab.app.tasks[task].lock_definition.unique
    text = runtime(lab.app).backend.swap(unique.name(args, {}), None, None, 0)
    return None if text is None else UniqueClaim.decode(text)


@pytest.mark.parametrize(("unique", "when", "where"), PLACES)
def test_killed_and_delivered_again_it_runs_and_the_next_call_is_a_new_one(
    make_lab: MakeLab, effects: Effects, unique: str, when: str, where: str
) -> None:
    lab = make_lab(lock={"unique": unique}, faults=[faults.kill(when, where)])
    pay = lab.app.tasks["pay"]
    # When its worker is killed there, and its message is delivered again
    with lab.worker("prefork", concurrency=1) as worker:
        first = pay.delay("42", 7)
        until("the fault strikes", lambda: faults.struck(lab.folder))
        worker.ended()
        deliver_again(lab.app)
        work_off(lab, worker)
    # Then it has paid once, and nothing of it is left
    assert first.get(timeout=30) == 7
    assert [payment[0] for payment in effects.payments()] == [first.id]
    assert claim(lab, "pay", "42", 7) is None
    assert nothing_is_held(lab, "42")
    # And the next call is a new one
    assert not pay.delay("42", 7).is_duplicate


@pytest.mark.parametrize("where", [MEET, BODY], ids=["before the claim", "in the body"])
def test_acknowledged_before_and_killed_it_blocks_no_call_for_longer_than_its_lease(
    make_lab: MakeLab, effects: Effects, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    lab = make_lab(
        lock={"unique": "done"}, task={"acks_late": False}, faults=[faults.kill("before", where)]
    )
    pay = lab.app.tasks["pay"]
    with lab.worker("prefork", concurrency=1) as worker:
        pay.delay("42", 7)
        until("the fault strikes", lambda: faults.struck(lab.folder))
        worker.ended()
    # Given that a minute has passed for what no worker has claimed
    if where == MEET:
        monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    # Then a call is published, and paid once
    until("a call is published", lambda: pay.delay("42", 7) and waiting(lab))
    with lab.worker(concurrency=1) as worker:
        until("it has paid", lambda: len(effects.payments()) == 1)
        until("the claim has ended", lambda: claim(lab, "pay", "42", 7) is None)
    assert len(effects.payments()) == 1


def waiting(lab: Lab) -> int:
    with lab.app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen("celery"))


def publish_and_die(lab: Lab, after: str) -> None:
    """A process publishes a task, and is killed *after* a call."""
    lock = {"unique": "done", "on_contention": "reschedule"}
    fault, tasks = faults.kill("after", after), [("42", 1)]
    with publishing(
        lab.folder, "web", lab.config["celery"], tasks, faults=[fault], lock=lock
    ) as process:
        lab.go("publish")
        assert process.wait(60) == -signal.SIGKILL


def test_a_publisher_killed_between_claim_and_message_blocks_for_a_minute_of_calls(
    make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab = make_lab(lock={"unique": "done"})
    apply = lab.app.tasks["apply"]
    publish_and_die(lab, CALL)
    assert waiting(lab) == 0
    # Then a call is answered with what never came
    assert apply.delay("42", 1).id == "web-0000"
    assert waiting(lab) == 0
    # And after a minute it is published, under that id
    monkeypatch.setattr("celery_dlock.core.unique.GRACE", -1.0)
    result = apply.delay("42", 1)
    assert (result.id, result.is_duplicate, waiting(lab)) == ("web-0000", True, 1)
    with lab.worker(concurrency=1):
        assert result.get(timeout=30) == 1
        until("the claim has ended", lambda: claim(lab, "apply", "42", 1) is None)


def test_a_publisher_killed_between_its_message_and_the_answer_has_published(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(lock={"unique": "done"})
    apply = lab.app.tasks["apply"]
    publish_and_die(lab, PUBLISH)
    # Then a call is answered with the message that is there
    result = apply.delay("42", 1)
    assert (result.id, result.is_duplicate, waiting(lab)) == ("web-0000", True, 1)
    with lab.worker(concurrency=1):
        assert result.get(timeout=30) == 1
        until("the claim has ended", lambda: claim(lab, "apply", "42", 1) is None)
    assert len(lab.journal.read("start")) == 1


@pytest.mark.parametrize("how", ["its time limit", "out of memory", "revoked"])
@pytest.mark.parametrize("acks_late", [True, False], ids=["late", "early"])
def test_a_task_whose_child_is_killed_for_good_lives_no_longer(
    make_lab: MakeLab, how: str, acks_late: bool
) -> None:
    lab = make_lab(lock={"unique": "done", "ttl": 60.0}, task={"acks_late": acks_late})
    apply, store = lab.app.tasks["apply"], runtime(lab.app).backend
    limit = 1 if how == "its time limit" else None
    with lab.worker("prefork", concurrency=1):
        result = apply.apply_async(("42", 1), {"hold": "for ever"}, time_limit=limit)
        (begun,) = lab.journal.wait_for("start")
        until("it is known to run", store.swapped)
        if how == "revoked":
            result.revoke(terminate=True, signal="SIGKILL")
        elif how == "out of memory":
            os.kill(begun["pid"], signal.SIGKILL)
        until("it has failed", result.ready)
        until("the claim has ended", lambda: not store.swapped())


def test_a_shutdown_that_breaks_off_the_body_leaves_the_claim_to_its_next_delivery(
    make_lab: MakeLab,
) -> None:
    lab = make_lab(lock={"unique": "done"})
    apply = lab.app.tasks["apply"]
    with lab.worker(concurrency=1) as worker:
        first = apply.delay("42", 1, hold="body")
        lab.journal.wait_for("start")
        worker.stop(signal.SIGQUIT)
        # When the worker has gone, a call is answered with what will run again
        assert apply.delay("42", 1, hold="body").id == first.id
        worker.start()
        lab.journal.wait_for("start", count=2)
        assert apply.delay("42", 1, hold="body").id == first.id
        lab.go("body")
        assert first.get(timeout=30) == 1
        until("the claim has ended", lambda: not runtime(lab.app).backend.swapped())
    assert waiting(lab) == 0


def test_two_hundred_calls_from_many_threads_are_one_message(make_lab: MakeLab) -> None:
    lab = make_lab(lock={"unique": "done"})
    apply = lab.app.tasks["apply"]

    results = at_once(8, lambda _: [apply.delay("42", 1) for _ in range(25)])

    every = [result for some in results for result in some]
    assert len({result.id for result in every}) == 1
    assert [result.is_duplicate for result in every].count(False) == 1
    assert waiting(lab) == 1


@pytest.mark.parametrize("unique", ["done", "start"])
def test_under_prefork_while_others_hold_the_key_it_waits_and_runs_once(
    make_lab: MakeLab, unique: str
) -> None:
    """What the main process parks for children is shown as theirs is."""
    lab = make_lab(lock={"unique": unique, "policy": "queue"})
    apply = lab.app.tasks["apply"]
    with lab.worker("prefork", concurrency=2):
        apply.delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        firsts = [apply.delay("42", number) for number in range(1, 11)]
        store = runtime(lab.app).backend
        until("they wait", lambda: store.peek("order:42").parked == 10)

        def shown(number: int) -> bool:
            found = claim(lab, "apply", "42", number)
            return found is not None and found.key == "order:42"

        until("all are known to wait there", lambda: all(map(shown, range(1, 11))))
        again = [apply.delay("42", number) for number in range(1, 11)]
        assert [result.id for result in again] == [result.id for result in firsts]
        lab.go("first")
        assert [result.get(timeout=30) for result in again] == list(range(1, 11))
        until(
            "no claim is left",
            lambda: not any(claim(lab, "apply", "42", number) for number in range(11)),
        )
    assert len(lab.journal.read("start")) == 11
