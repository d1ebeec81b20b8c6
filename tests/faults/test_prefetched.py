"""A copy of a message lies prefetched in one worker while another brings its task to an end."""

from __future__ import annotations

import pytest

from celery_dlock import lock
from tests.faults.conftest import MakeLab
from tests.services.redelivery import deliver_again, not_finished
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]


@pytest.mark.parametrize(
    ("policy", "ends"), [("fail", "FAILURE"), ("skip", "SUCCESS"), ("reschedule never", "FAILURE")]
)
def test_a_task_that_its_key_was_refused_for_good_does_not_run_from_a_prefetched_copy(
    make_lab: MakeLab, policy: str, ends: str
) -> None:
    lab = make_lab(lock={"policy": policy}, task={"acks_late": False})
    apply, note = lab.app.tasks["apply"], lab.app.tasks["note"]
    with lab.worker("prefork", concurrency=1) as hoards:
        # Given a worker that is busy, and has a message behind it
        apply.delay("other", hold="other")
        lab.journal.wait_for("start", order="other")
        result = apply.apply_async(("42",), link=note.s("told"), link_error=note.si(1, "told"))
        until("it is prefetched", lambda: not_finished(lab.app) == (0, 1))

        # When that is delivered to another one as well, where its key is taken
        with (
            lock("order:42", app=lab.app, ttl=60),
            lab.worker("prefork", concurrency=1) as ends_it,
        ):
            assert deliver_again(lab.app) == 1
            until("it has ended", lambda: lab.app.AsyncResult(result.id).state == ends)
            ends_it.stop()
        # And the first one comes to it
        lab.go("other")
        dropped = f"Task apply[{result.id}] dropped at "
        until("it is at its copy", lambda: dropped in hoards.log or lab.journal.read(order="42"))
        hoards.stop()

    # Then it does not run, And nobody is told of its end a second time
    assert lab.journal.read(order="42") == []
    assert len(lab.journal.read("told")) <= 1
    assert lab.app.AsyncResult(result.id).state == ends
