"""Why did it not run? Asked of real workers, for each thing that may become of a task."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Claim, Outcome
from celery_dlock.ops import actions
from celery_dlock.ops.explain import Answer, State, explain
from celery_dlock.ops.explain_key import explain_key
from celery_dlock.runtime import forget, runtime
from tests.services.lab import Lab
from tests.services.until import until
from tests.workers.conftest import embedded

KEY = "order:42"

#: By a result.
ENDED = (State.SKIPPED, State.FAILED, State.REVOKED, State.DONE)

Ask = Callable[..., Answer]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    kept = {"dlock_history": f"sqlite:///{tmp_path / 'history.db'}"}
    made = Lab(tmp_path, {"celery": {**embedded(tmp_path), **kept}})
    yield made
    forget(made.app)


@pytest.fixture
def ask(lab: Lab) -> Ask:
    """What is said of a task when it has come to *state*, and all that is to be known is written.

    An event may be written before the result is, of which it tells.
    """

    def ask(result: Any, state: State, *events: str) -> Answer:
        def answer() -> Answer | None:
            if state in ENDED and not result.ready():
                return None
            found = explain(lab.app, result.id)
            told = {entry.event for entry in found.entries}
            return found if found.state is state and told.issuperset(events) else None

        found = until(f"{result.id} is {state}", answer)
        assert found is not None
        return found

    return ask


@pytest.mark.slow
def test_each_answer_names_who_is_to_blame(lab: Lab, ask: Ask) -> None:
    def send(name: str, *args: Any, **options: Any) -> Any:
        return lab.app.tasks[name].apply_async(("42", *args), **options)

    with lab.worker(concurrency=2):
        runs = send("queues", "go")
        running = ask(runs, State.RUNNING, "Acquired")
        token = running.entries[-1].token
        assert running.task_name == "queues"
        assert f"has held {KEY!r}" in running.sentences[0]
        assert f"with token {token}" in running.sentences[0]

        first = send("queues")
        waiting = ask(first, State.WAITING, "Parked")
        assert (waiting.keys, waiting.tasks) == ((KEY,), (runs.id,))
        held_by = f"{runs.id} (queues on worker1@lab:"
        assert f"behind {held_by}" in waiting.sentences[0]
        assert "), which has held it since" in waiting.sentences[0]
        assert f"with token {token}; its place is 1st of 1" in waiting.sentences[0]
        second = send("queues")
        others = ask(second, State.WAITING, "Parked").sentences[0]
        assert f"with token {token}, and 1 other; its place is 2nd of 2" in others

        skips = ask(send("skips"), State.SKIPPED, "Skipped")
        assert skips.tasks == (runs.id,)
        assert f"{KEY!r} was held by {runs.id} since" in skips.sentences[0]
        gave_up = ask(send("gives_up"), State.FAILED, "TimedOut")
        assert gave_up.sentences[0].startswith("failed at ")
        assert "LockTimeout: gave up after" in gave_up.sentences[0]
        assert f"{KEY!r} is held by queues[{runs.id}] on worker1@lab:" in gave_up.sentences[0]
        assert "dlock show" not in gave_up.sentences[0]
        assert gave_up.tasks == (runs.id,)
        queued_up = ask(send("gives_up_queueing"), State.FAILED, "TimedOut").sentences[0]
        assert "LockTimeout: gave up after" in queued_up
        assert " of Queue; a larger one waits longer): its turn at" in queued_up
        back = ask(send("comes_back"), State.RESCHEDULED, "Rescheduled")
        assert back.sentences[0].startswith("was rescheduled ")
        assert f"[{runs.id}] on " in back.sentences[0]
        assert back.sentences[1].startswith("its next try ")
        assert f"a place in the queue of {KEY!r}" in back.sentences[2]

        revoked = send("queues")
        ask(revoked, State.WAITING, "Parked")
        (cancel,) = actions.cancels(lab.app, revoked.id)
        assert cancel.carry_out("somebody")
        gone = ask(revoked, State.REVOKED, "Revoked")
        assert f"was revoked while it waited for {KEY!r}" in gone.sentences[0]

        send("queues", task_id=first.id)
        copied = ask(first, State.WAITING, "Dropped")
        dropped = f"had a duplicate dropped at {KEY!r}, because it was already"
        assert f"{dropped} waiting" in copied.sentences[1]

        key = explain_key(lab.app, KEY)
        assert key.line is not None
        assert [held.task_id for held in key.line.holders] == [runs.id]
        waits = [line.task_id for line in key.queue if line.parked and not line.woken]
        assert waits == [first.id, second.id]
        assert key.sentences[0].startswith(held_by)
        assert ") has held it since" in key.sentences[0]
        assert [e.task_id for e in key.entries if e.event == "Skipped"] == [skips.task_id]

        lab.go("go")
        for result in (runs, first, second):
            done = ask(result, State.DONE, "Released")
            assert done.sentences[0].startswith("was done at ")

        send("queues", task_id=runs.id)
        again = ask(runs, State.DONE, "Dropped")
        assert f"{dropped} done" in again.sentences[1]

        store = runtime(lab.app).backend
        for run in range(MAX_LOST_RUNS):
            deadly = Claim("order:dead", "deadly:0:0", f"run {run}", ttl=10**9)
            store.enter(deadly)
            store.leave(deadly, Outcome.ABANDONED)
        lab.app.tasks["queues"].apply_async(("dead",), task_id="deadly")
        dead = ask(lab.app.AsyncResult("deadly"), State.DEAD, "DeadLettered")
        assert f"{MAX_LOST_RUNS} of its runs were lost" in dead.sentences[0]
        assert dead.sentences[1] == "`dlock dead deadly --replay` sends it again"
