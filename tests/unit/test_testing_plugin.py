"""The pytest plugin in a project of its own: found, light, and telling a fence from none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from celery import Celery

from celery_dlock import ConfigurationError, lock, locked_task
from celery_dlock.testing import in_memory

PLUGIN = "celery_dlock_pytest"

SHOP = """
import sqlite3
from celery import Celery
from celery_dlock import fencing, locked_task

app = Celery("shop", broker="memory://")
app.conf.dlock_url = "redis://127.0.0.1:1/0"  # where nobody answers
db = sqlite3.connect(":memory:")
fencing.create_table(db)
db.execute("CREATE TABLE payments (event TEXT, amount INTEGER)")

@locked_task("order:{order_id}", app=app)
def pay(order_id, event_id, amount):
    with db:
        fencing.admit(db)
        if fencing.once(db, event_id):
            db.execute("INSERT INTO payments VALUES (?, ?)", (event_id, amount))

@locked_task("order:{order_id}", app=app)
def pay_unfenced(order_id, event_id, amount):
    with db:
        db.execute("INSERT INTO payments VALUES (?, ?)", (event_id, amount))
"""

CONFTEST = """
import pytest
from shop import app

@pytest.fixture(autouse=True)
def clock(dlock_in_memory):
    return dlock_in_memory(app)
"""

TESTS = """
from shop import app, db, pay, pay_unfenced
from celery_dlock.runtime import runtime

def test_fenced(stale_holder):
    late = stale_holder(pay, 42, "event-1", 10)
    pay(42, "event-2", 10)
    late.wakes_up()
    assert db.execute("SELECT event FROM payments").fetchall() == [("event-2",)]

def test_unfenced(stale_holder):
    late = stale_holder(pay_unfenced, 42, "event-1", 10)
    pay_unfenced(42, "event-2", 10)
    late.wakes_up()

def test_clock(clock):
    before = clock.now
    clock.advance(1)
    assert runtime(app).backend._now() == before + 1_000_000
"""


REQUESTED = """
import pytest
from celery_dlock import lock
from shop import app, pay

pytestmark = pytest.mark.usefixtures("dlock_in_memory")

def test_pays():
    pay(42, "event-1", 10)
    with lock("order:42", app=app):
        pay.delay(42, "event-2", 10)

def test_with_a_worker(inline_worker):
    with lock("order:42", app=app):
        pass

def nested(outer, inner):
    with lock(outer, app=app), lock(inner, app=app):
        pass

@pytest.mark.usefixtures("checked_lock_order")
def test_an_order():
    nested("a", "b")

@pytest.mark.usefixtures("checked_lock_order")
def test_the_inverse_order():
    nested("b", "a")
"""


def run(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "error", *options]
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    env = {**os.environ, "PYTHONPATH": path}
    done = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=240, check=False
    )
    return done.stdout + done.stderr


def test_a_project_tells_a_fenced_task_from_one_that_is_not(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_shop.py").write_text(TESTS)

    told = run(tmp_path, "-rA", "--tb=short")

    assert "PASSED test_shop.py::test_fenced" in told
    assert "PASSED test_shop.py::test_clock" in told
    assert "FAILED test_shop.py::test_unfenced" in told
    assert "2 passed" in told, told
    assert "1 failed" in told, told
    assert "E   AssertionError: shop.pay_unfenced came too late and nothing refused it" in told
    assert "with token " in told
    assert "fencing.admit(connection)" in told
    assert "stale.py:" not in told  # the trace ends in the user's test


def test_fixtures_that_are_requested_and_not_called_do_what_they_say(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP)
    (tmp_path / "test_shop.py").write_text(REQUESTED)

    told = run(tmp_path, "-rA", "--tb=short")

    assert "4 passed, 1 error" in told, told
    assert "ERROR test_shop.py::test_the_inverse_order - AssertionError: locks are nested" in told


def test_a_project_that_uses_none_of_it_imports_none_of_it(tmp_path: Path) -> None:
    (tmp_path / "test_other.py").write_text(
        "import sys\n"
        "def test_nothing_is_imported(request):\n"
        f"    assert '{PLUGIN}' in sys.modules\n"
        "    ours = {'celery', 'kombu', 'redis', 'celery_dlock'}\n"
        "    assert not ours & {name.split('.')[0] for name in sys.modules}\n"
    )

    # pytest-celery is not ours, and imports Celery.
    told = run(tmp_path, "-p", "no:celery", "-p", "no:pytest_celery.plugin")

    assert "1 passed" in told, told


@pytest.fixture
def app(tmp_path: Path) -> Celery:
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.dlock_url = f"sqlite:///{tmp_path / 'dlock.db'}"
    app.conf.dlock_require = ["durable"]
    return app


def test_an_app_is_put_in_memory_and_taken_back(app: Celery) -> None:
    with lock("a", app=app) as lease:
        before = lease.fencing_token

    with in_memory(app), lock("a", app=app) as lease:
        assert lease.fencing_token == 1
        assert lease.guarantee == "strict"

    assert app.conf.dlock_require == ["durable"]
    with lock("a", app=app) as lease:
        assert lease.fencing_token > before


def test_an_app_without_a_store_can_be_put_in_memory_and_a_wrong_one_cannot() -> None:
    app = Celery("shop", set_as_current=False)

    @locked_task("order:{order}", app=app)
    def pay(order: int) -> int:
        return order

    with in_memory(app):
        assert pay(42) == 42
    with pytest.raises(ConfigurationError, match="dlock_url"):
        pay(42)
    app.conf.dlock_tll = 5
    with pytest.raises(ConfigurationError, match="dlock_ttl"), in_memory(app):
        pass
