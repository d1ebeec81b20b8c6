"""Why a task did not run, and which tasks get into each other's way."""

from __future__ import annotations

from datetime import UTC, datetime

from starlette.requests import Request
from starlette.responses import Response

from celery_dlock.inspection.explain import explain
from celery_dlock.inspection.told import told
from celery_dlock.inspection.wording import Clock
from celery_dlock.web.danger import Danger
from celery_dlock.web.past import COUNTED
from celery_dlock.web.reading import ROWS
from celery_dlock.web.rendering import show
from celery_dlock.web.text import span


def one_task(request: Request) -> Response:
    """What has become of the task ``id``; it is asked once, because that costs more than a look."""
    task_id = request.query_params.get("id", "").strip()
    app = request.app.state.celery
    answer = explain(app, task_id) if task_id else None
    clock = Clock.of(app)
    events = [(entry, told(entry, clock)) for entry in answer.entries] if answer else []
    return show(request, "task.html", task_id=task_id, answer=answer, events_of_it=events)


def contention(request: Request) -> Response:
    """The tasks by name, those first that have crossed danger lines."""
    tally = request.app.state.tally.get()
    if isinstance(tally, str):
        return show(request, "contention.html", gap=tally, since=None, over="", found=())
    found = Danger.of_all(tally.tasks, ROWS)
    counted = (datetime.now(UTC) - tally.since).total_seconds()
    over = "hour" if counted >= COUNTED else span(counted)
    return show(request, "contention.html", gap="", since=tally.since, over=over, found=found)
