"""A worker is stopped in the body, past the end of its lease, and goes on when it is too late."""

from __future__ import annotations

import pytest

from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again, work_off
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


def lapse(lab: Lab, key: str) -> None:
    """Wait until the lease of *key* has ended, so that the next delivery runs at once."""
    backend = runtime(lab.app).backend
    until("the lease ends", lambda: backend.reap(key) and not backend.peek(key).holders)


def test_the_late_write_of_a_copy_that_was_overtaken_is_refused(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab()
    with lab.worker(concurrency=1) as paused, lab.worker(concurrency=1) as other:
        # Given a worker that is stopped before its write
        other.kill()
        result = lab.app.tasks["pay"].delay("42", 7, hold="write")
        lab.journal.wait_for("start")
        paused.pause()
        # And its message delivered to another one, which commits
        deliver_again(lab.app)
        lab.go("write")
        other.start()
        (paid,) = lab.journal.wait_for("paid")
        lab.journal.wait_for("end")
        # When the first goes on
        paused.resume()
        lab.journal.wait_for("lost")
        paused.stop()
        other.stop()
        work_off(lab, other)

    # Then its write was refused, its hook was called, once, and the result is the other's
    late, taker = lab.journal.read("start")
    assert late["token"] < taker["token"] == paid["token"]
    assert [payment[2] for payment in effects.payments()] == [taker["token"]]
    assert len(lab.journal.read("start")) == 2
    assert [lost["token"] for lost in lab.journal.read("lost")] == [late["token"]]
    assert "was refused a late write" in paused.log
    assert result.state == "SUCCESS"
    assert result.get() == 7


def test_a_run_that_lost_its_lock_takes_no_message_away_from_the_one_that_carries_on(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab()
    with lab.worker(concurrency=1) as paused, lab.worker(concurrency=1) as other:
        # Given a worker stopped in the body, and its message running in another one
        other.kill()
        result = lab.app.tasks["careful"].delay("42")
        lab.journal.wait_for("start")
        paused.pause()
        lapse(lab, "order:42")
        deliver_again(lab.app)
        other.start()
        lab.journal.wait_for("start", count=2)
        # When the first goes on, finds its lease lost, and ends; and then the other one is killed
        paused.resume()
        lab.journal.wait_for("lost")
        until("it has ended", lambda: f"[{result.id}] was rescheduled" in paused.log)
        paused.stop()
        other.kill()
        # Then there still is a message, and the task runs to its end
        deliver_again(lab.app)
        lab.go("careful")
        work_off(lab, other)
    assert [payment[0] for payment in effects.payments()] == [result.id]
    assert result.state == "SUCCESS"
    assert nothing_is_held(lab, "42")


def test_one_that_stands_still_while_it_is_replaced_is_refused_and_ends_as_skipped(
    make_lab: MakeLab, effects: Effects
) -> None:
    lab = make_lab(lock={"policy": "newest"})
    pay = lab.app.tasks["pay"]
    with lab.worker(concurrency=1) as paused, lab.worker(concurrency=1) as other:
        # Given a worker stopped before its write, and a newer call that another one takes
        other.kill()
        late = pay.delay("42", 1, hold="write")
        lab.journal.wait_for("start")
        other.start()  # which may take longer than a lease, and that of the first must not end
        paused.pause()
        lab.go("write")
        newest = pay.delay("42", 2)
        lab.journal.wait_for("end", id=newest.id)
        # When the first goes on
        paused.resume()
        until("it has ended", late.ready)
        # And its message comes once more
        paused.stop()
        pay.apply_async(("42", 1), task_id=late.id)
        other.stop()
        work_off(lab, other)

    assert "was refused a late write to" in paused.log
    assert [payment[0] for payment in effects.payments()] == [newest.id]
    assert len(lab.journal.read("start")) == 2
    assert late.get()["reason"] == f"replaced by {newest.id}"
    assert newest.get() == 2
    assert nothing_is_held(lab, "42")
