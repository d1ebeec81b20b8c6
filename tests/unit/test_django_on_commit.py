"""A locked task of a Django project is sent on commit as any task of it is, each in a process."""

from __future__ import annotations

from pathlib import Path

from tests.unit.test_namespaces import DJANGO, SETTINGS, run

DATABASE = """
DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
CELERY_BROKER_URL = "memory://"
"""

TASKS = """
from celery import shared_task
from celery_dlock import Debounce, LockedTask, locked_task
from celery_dlock.runtime import runtime
from django.db import transaction

@locked_task("order:{order}", unique="done")
def charge(order): ...

@locked_task("order:{order}", unique=Debounce(delay=60, max_delay=60))
def index(order): ...

@locked_task("order:{order}", app=app)
def refund(order): ...

@shared_task(base=LockedTask, lock_key="order:{order}")
def book(order): ...

sent = []
def count(sender=None, headers=None, **_): sent.append(headers["argsrepr"])
from celery import signals
signals.before_task_publish.connect(count)
"""

ON_COMMIT = """
for task in (charge, refund, book):
    with transaction.atomic():
        task.delay_on_commit("42")
        task.apply_async_on_commit(("42",))
        assert sent == [], sent
    assert sent == ["('42',)"] * (1 if task is charge else 2), (task, sent)
    sent.clear()
kept = lambda: [key for key in runtime(app).backend.keys("").keys if "index" in key]
with transaction.atomic():
    index.delay_on_commit("42")
    assert not kept()
assert kept()  # the lock store keeps the call until it is due
print("as it should be", file=__import__("sys").stderr)
"""


def test_a_task_is_sent_on_commit_and_a_unique_one_asks_then(tmp_path: Path) -> None:
    (tmp_path / "shop_settings.py").write_text(SETTINGS.format(folder=tmp_path, extra=DATABASE))

    assert "as it should be" in (said := run(DJANGO + TASKS + ON_COMMIT, tmp_path)), said


def test_elsewhere_there_is_no_such_thing(tmp_path: Path) -> None:
    said = run(
        "from celery import Celery\nfrom celery_dlock import locked_task\n"
        "app = Celery('shop', broker='memory://')\n"
        "@locked_task('order:{order}')\ndef charge(order): ...\ncharge.delay_on_commit('42')\n",
        tmp_path,
    )

    assert "no attribute 'delay_on_commit'" in said
