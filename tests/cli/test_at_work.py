"""The commands beside a real worker: a holder is freed while its body runs, and what follows."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cli.terminal import at_terminal, dlock
from tests.services.brokers import close, kept_in_sqlite, over_folder
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.turns import parked

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    config = {**over_folder(tmp_path), **kept_in_sqlite(tmp_path), "dlock_ttl": 60.0}
    lock = {"policy": "queue", "ttl": None}
    made = Lab(tmp_path, {"celery": config, "lock": lock, "task": {"max_retries": 3}})
    Effects(tmp_path).create()
    (tmp_path / "lab.json").write_text(json.dumps(made.config))
    yield made
    close(made.app)


def run(lab: Lab, *arguments: str) -> Any:
    """A command as a process of its own."""
    config = {"LAB_CONFIG": str(lab.folder / "lab.json")}
    return dlock(lab.folder, *arguments, app="tests.services.lab:app", env=config)


def test_of_two_bodies_at_once_the_one_that_was_released_cannot_write_any_more(lab: Lab) -> None:
    pay = lab.app.tasks["pay"]
    with lab.worker("threads", concurrency=2) as worker:
        stuck = pay.delay("42", 1, hold="stuck")
        (started,) = lab.journal.wait_for("start")
        following = pay.delay("42", 2)
        parked(lab, "42", 1)

        (line,) = json.loads(run(lab, "ls", "--json").stdout)["keys"]
        why = run(lab, "show", following.id)

        (holder,) = line["holders"]
        assert (holder["task_id"], holder["token"]) == (stuck.id, started["token"])
        assert why.stdout.startswith(f"task {following.id}: waiting\n")
        assert f"behind {stuck.id}" in why.stdout

        freed = run(lab, "release", "order:42", "--token", str(started["token"]), "--yes")
        assert freed.returncode == 0, freed.stderr
        assert following.get(timeout=60) == 2
        assert lab.journal.read("paid", id=stuck.id) == []

        lab.go("stuck")
        assert stuck.get(timeout=60) == 1
        worker.stop()

    paid = [(entry["id"], entry["token"]) for entry in lab.journal.read("paid")]
    assert [task for task, _ in paid] == [following.id, stuck.id]
    runs = lab.journal.read("start", id=stuck.id)
    assert [entry["token"] for entry in runs] == [started["token"], paid[1][1]]
    assert [payment[0] for payment in Effects(lab.folder).payments()] == [following.id, stuck.id]


@pytest.mark.server("redis")
def test_top_goes_on_while_the_store_is_away(own_redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "app = Celery('shop', broker='memory://')\n"
        f"app.conf.dlock_url = {own_redis_server.url!r}\n"
    )
    with at_terminal(tmp_path, "ls", "--watch", "--every", "0.1", columns=160) as terminal:
        terminal.wait_for("0 of 0 keys")
        own_redis_server.kill()
        terminal.wait_for("\x1b[1;31m")  # what is wrong, in red
        away = len(terminal.said)
        own_redis_server.start()
        terminal.wait_for("Ctrl-C quits", after=away)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0

    assert "Traceback" not in terminal.said
