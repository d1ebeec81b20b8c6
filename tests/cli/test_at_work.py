"""The commands beside a real worker: a holder is freed while its body runs, and what follows."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.runtime import runtime
from tests.cli.terminal import at_terminal, dlock
from tests.services.brokers import close, kept_in_sqlite, over_folder
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.turns import parked
from tests.services.until import until

pytestmark = pytest.mark.slow


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    config = {**over_folder(tmp_path), **kept_in_sqlite(tmp_path), "dlock_ttl": 60.0}
    lock = {"policy": getattr(request, "param", "queue"), "ttl": None}
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
        # Given a body that hangs, and one that waits for its key
        stuck = pay.delay("42", 1, hold="stuck")
        (started,) = lab.journal.wait_for("start")
        following = pay.delay("42", 2)
        parked(lab, "42", 1)

        # When somebody looks
        (line,) = json.loads(run(lab, "ls", "--json").stdout)["keys"]
        why = run(lab, "show", following.id)

        # Then it is seen who has the key, and why the other one does not run
        (holder,) = line["holders"]
        assert (holder["task_id"], holder["token"]) == (stuck.id, started["token"])
        assert why.stdout.startswith(f"task {following.id}: waiting\n")
        assert f"behind {stuck.id}" in why.stdout

        # When they free it, Then the next one runs at once, while the first one hangs
        freed = run(lab, "release", "order:42", "--token", str(started["token"]), "--yes")
        assert freed.returncode == 0, freed.stderr
        assert following.get(timeout=60) == 2
        assert lab.journal.read("paid", id=stuck.id) == []

        # And when that one wakes up its write is refused; it runs again, after the other
        lab.go("stuck")
        assert stuck.get(timeout=60) == 1
        worker.stop()

    paid = [(entry["id"], entry["token"]) for entry in lab.journal.read("paid")]
    assert [task for task, _ in paid] == [following.id, stuck.id]
    runs = lab.journal.read("start", id=stuck.id)
    assert [entry["token"] for entry in runs] == [started["token"], paid[1][1]]
    assert [payment[0] for payment in Effects(lab.folder).payments()] == [following.id, stuck.id]


@pytest.mark.parametrize("lab", ["reschedule"], indirect=True)
def test_who_asks_again_by_itself_is_listed_and_has_waited_since_it_first_asked(lab: Lab) -> None:
    apply, store = lab.app.tasks["apply"], runtime(lab.app).backend

    def listed() -> Any:
        return json.loads(run(lab, "ls", "--waiting", "--json").stdout)["keys"]

    def kept_until() -> int | None:
        return next((entry.expires for entry in store.peek("order:42").waiting), None)

    with lab.worker("threads", concurrency=2) as worker:
        apply.delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        back = apply.delay("42", 1)
        (line,) = until("it waits", listed)
        first = kept_until()
        until("it asks again", lambda: kept_until() != first)

        (again,) = listed()
        assert (line["waiting"], again["oldest"]) == (1, line["oldest"])
        assert "dlock_waiting_tasks 1.0" in run(lab, "metrics").stdout
        assert "1 task waits, the first since" in run(lab, "show", "order:42").stdout
        lab.go("first")

        assert back.get(timeout=60) == 1
        worker.stop()
    assert listed() == []


def test_a_message_that_is_cancelled_ends_and_the_next_one_runs(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]
    with lab.worker("threads", concurrency=2) as worker:
        apply.delay("42", 0, hold="first")
        lab.journal.wait_for("start", number=0)
        unwanted, wanted = apply.delay("42", 1), apply.delay("42", 2)
        parked(lab, "42", 2)

        assert run(lab, "cancel", unwanted.id, "--yes").returncode == 0
        until("it has ended", lambda: unwanted.state == "REVOKED")
        lab.go("first")

        assert wanted.get(timeout=60) == 2
        worker.stop()
    assert [entry["number"] for entry in lab.journal.read("start")] == [0, 2]


@pytest.mark.server("redis")
def test_top_goes_on_while_the_store_is_away(own_redis_server: RedisServer, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        "app = Celery('shop', broker='memory://')\n"
        f"app.conf.dlock_url = {own_redis_server.url!r}\n"
    )
    with at_terminal(tmp_path, "top", "--every", "0.1", columns=160) as terminal:
        terminal.wait_for("0 of 0 keys")
        own_redis_server.kill()
        terminal.wait_for("\x1b[1;31m")  # what is wrong, in red
        away = len(terminal.said)
        own_redis_server.start()
        terminal.wait_for("Ctrl-C quits", after=away)
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0

    assert "Traceback" not in terminal.said
