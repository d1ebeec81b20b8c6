"""Limits by plan: a table of tenants' limits in Django, changed while tasks wait."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.test_namespaces import DJANGO, SETTINGS, run

DATABASE = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "memory://"
"""

TASKS = """
from celery_dlock import Limit, Queue, lock, locked_task
from celery_dlock.runtime import runtime
from celery_dlock.testing import InlineWorker
from django.db import connection, models

class Plan(models.Model):
    tenant = models.CharField(max_length=50, primary_key=True)
    at_once = models.PositiveIntegerField()
    class Meta:
        app_label = "plans"

with connection.schema_editor() as editor:
    editor.create_model(Plan)
plan = Plan.objects.create(tenant="acme", at_once=2)

def at_once(tenant, number):
    return Plan.objects.values_list("at_once", flat=True).get(tenant=tenant)

ran = []

@locked_task(Limit("tenant:{tenant}", at_once), on_contention=Queue(), app=app)
def load(tenant, number):
    ran.append((number, worker.queued()))

worker = InlineWorker(app)
running = [lock(Limit("tenant:acme", 2), app=app) for _ in range(2)]
for block in running:
    block.acquire()

def deliver():
    while (message := worker.take()) is not None:
        worker.run(message)

for number in range(10):
    load.delay("acme", number)
deliver()
assert ran == [], ran
"""

RAISED = """
Plan.objects.filter(tenant="acme").update(at_once=8)
deliver()
assert ran == [], "nobody has asked since"
running.pop().release()
worker.run(worker.take())  # the first that waits asks, and six more have room beside the other
assert ran == [(0, 6)], ran
deliver()
assert sorted(number for number, _ in ran) == list(range(10)), ran
"""

RAISED_AS_ANOTHER_COMES = """
Plan.objects.filter(tenant="acme").update(at_once=8)
load.delay("acme", 10)
worker.run(worker.take())  # it waits, and six start
assert (ran, worker.queued()) == ([], 6), (ran, worker.queued())
"""

LOWERED = """
Plan.objects.filter(tenant="acme").update(at_once=1)
load.delay("acme", 10)
deliver()
running.pop().release()
deliver()
assert ran == [], "one is left, and no more may run"
running.pop().release()
deliver()
assert [number for number, _ in ran] == list(range(11)), ran
"""


@pytest.mark.parametrize(
    "change",
    [RAISED, RAISED_AS_ANOTHER_COMES, LOWERED],
    ids=["raised, and one ends", "raised, and another comes", "lowered"],
)
def test_a_plan_that_changes_while_tasks_wait_holds_from_the_next_that_asks(
    tmp_path: Path, change: str
) -> None:
    (tmp_path / "shop_settings.py").write_text(SETTINGS.format(folder=tmp_path, extra=DATABASE))
    end = 'print("as it should be", file=__import__("sys").stderr)'

    assert "as it should be" in (said := run(DJANGO + TASKS + change + end, tmp_path)), said
