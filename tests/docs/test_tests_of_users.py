"""The test files of a how-to, run together in one pytest, with servers configured as in production.

The page runs each file in a process of its own, so what Celery keeps from one test to the next is
seen only here.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

from tests.docs.page import FILE_NAME
from tests.services.redis import RedisServer

PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/test-your-tasks.rst"
BLOCK = re.compile(r"^\.\. (?:invisible-)?code-block::? python\n\n((?:   .*\n|\n)+)", re.MULTILINE)

#: What the page itself shows to fail.
REFUSED = {
    "test_refund.py::test_a_paused_worker_refunds_nothing",
    "test_order.py::test_an_account_is_closed_with_its_orders",
}

SETTINGS = """
import os
app.conf.update(
    broker_url=os.environ["SERVER"],
    result_backend=os.environ["SERVER"],
    dlock_url=os.environ["SERVER"],
    dlock_history="sqlite:///history.db",
    dlock_sinks=["prometheus"],
)
assert [app.pool, app.amqp.producer_pool, app.backend]  # Celery has them from now on
"""

EAGER = """
from celery_dlock import lock, operate
from shop import app, pay

def test_an_eager_task_and_a_block():
    app.conf.task_always_eager = True
    assert pay.delay(6, "event-7", 10).get() is None
    app.conf.task_always_eager = False
    with lock("order:6", app=app):
        assert operate.held("order:6", app=app)
"""

PUBLISHED = """
from shop import pay

def test_a_call_that_no_worker_takes():
    pay.delay(7, "event-8", 10)
"""


def files_of_the_page(folder: Path) -> list[str]:
    """Write each file that the page shows, run what makes its tables, and name the tests."""
    for block in map(dedent, BLOCK.findall(PAGE.read_text())):
        if name := FILE_NAME.match(block):
            (folder / name[1]).write_text(block)
        else:
            subprocess.run([sys.executable, "-c", block], cwd=folder, check=True)
    with (folder / "shop.py").open("a") as shop:
        shop.write(SETTINGS)
    (folder / "test_eager.py").write_text(EAGER)
    (folder / "test_published.py").write_text(PUBLISHED)
    return sorted(path.name for path in folder.glob("test_*.py"))


def failed(folder: Path, names: list[str], url: str) -> set[str]:
    """The tests that fail when *names* run in this order."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-rfE", *names]
    env = {**os.environ, "SERVER": url, "PYTHONPATH": str(folder)}
    env["PROMETHEUS_MULTIPROC_DIR"] = str(folder / "metrics")
    (folder / "metrics").mkdir(exist_ok=True)
    ended = subprocess.run(
        command, cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=False
    )
    assert re.search(r"\d+ passed", ended.stdout), ended.stdout + ended.stderr
    return set(re.findall(r"^(?:FAILED|ERROR) (\S+)", ended.stdout, re.MULTILINE))


@pytest.mark.server("redis")
def test_nothing_reaches_configured_servers(own_redis_server: RedisServer, tmp_path: Path) -> None:
    names = files_of_the_page(tmp_path)
    before = own_redis_server.info("stats")["total_connections_received"]

    assert failed(tmp_path, names, own_redis_server.url) == REFUSED

    after = own_redis_server.info("stats")["total_connections_received"]
    assert after - before == 1  # which asked for this
    assert not (tmp_path / "history.db").exists()
    assert not list((tmp_path / "metrics").iterdir())


def test_backwards_and_without_servers(tmp_path: Path) -> None:
    names = files_of_the_page(tmp_path)
    assert failed(tmp_path, names[::-1], "redis://127.0.0.1:1/0") == REFUSED
