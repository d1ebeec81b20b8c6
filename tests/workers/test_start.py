"""A worker whose configuration cannot keep the promises does not start, and says why."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

from celery_dlock import BackendUnavailable, ConfigurationError
from celery_dlock.runtime import runtime
from tests.services.desk import open_desk
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker
from tests.workers.conftest import MakeLab

SECRET = "tiger-1234"
NOWHERE = "redis://127.0.0.1:1/0"


def refused(lab: Lab, pool: str = "prefork") -> str:
    """Start a worker that must not come up; what it says before it exits."""
    worker = Worker(lab.folder, lab.config, "refused", pool, 1)
    worker.start(ready=False)
    assert worker.process is not None
    try:
        code = worker.process.wait(60)
    finally:
        worker.kill()
    assert code != 0, worker.log
    assert " ready." not in worker.log
    return worker.log


CASES: dict[str, tuple[dict[str, Any], str]] = {
    "no store": ({"dlock_url": None}, "dlock_url is not set"),
    "unknown setting": ({"dlock_tttl": 5}, "unknown setting dlock_tttl; did you mean 'dlock_ttl'"),
    "one process only": ({"dlock_url": "memory://"}, "lives in one process"),
    "a missing trait": ({"dlock_require": ["multi-host"]}, "multi-host, which SqliteBackend lacks"),
}


@pytest.mark.parametrize("what", CASES)
def test_it_does_not_start_with(make_lab: MakeLab, what: str) -> None:
    config, said = CASES[what]

    log = refused(make_lab(celery=config))

    (line,) = [line for line in log.splitlines() if said in line]
    assert line.startswith("Error: ")
    assert "Traceback" not in log


def test_a_store_of_one_process_is_good_enough_for_threads(make_lab: MakeLab) -> None:
    lab = make_lab(celery={"dlock_url": "memory://"})

    with lab.worker("threads"):
        assert lab.app.tasks["apply"].delay("42", 7).get(timeout=30) == 7


def test_it_does_not_start_with_a_backoff_beyond_the_brokers_patience(make_lab: MakeLab) -> None:
    config = {
        "broker_url": NOWHERE,
        "broker_transport": None,
        "broker_transport_options": {"visibility_timeout": 60},
    }

    log = refused(make_lab(celery=config, lock={"policy": "reschedule by up to a minute"}))

    assert "may be rescheduled by 60 s" in log
    assert "visibility_timeout=60 s" in log


@pytest.mark.parametrize(
    "url",
    [
        f"redis://user:{SECRET}@localhost:6379/not-a-number",
        f"redis://user:{SECRET}@localhost:port/0",
        f"reddis://user:{SECRET}@localhost/0",
        f"sqlite://user:{SECRET}@localhost/x.db",
        f"memory://user:{SECRET}@localhost",
        f"redis://user:{SECRET}@localhost:6379/0?no_such_option=1",
    ],
)
def test_a_password_is_never_printed(url: str) -> None:
    with open_desk(dlock_url=url) as desk, pytest.raises(ConfigurationError) as caught:
        runtime(desk.app)

    assert SECRET not in "".join(traceback.format_exception(caught.value))


def test_nor_in_the_log_of_a_worker_that_does_not_start(make_lab: MakeLab) -> None:
    log = refused(make_lab(celery={"dlock_url": f"redis://user:{SECRET}@localhost:port/0"}))

    assert "\nError: redis-py cannot use the URL of the lock store" in log
    assert SECRET not in log


@pytest.mark.server("redis")
@pytest.mark.parametrize("away", [True, False])
def test_nor_by_a_store_that_is_away_or_refuses_it(
    own_redis_server: RedisServer, caplog: pytest.LogCaptureFixture, away: bool
) -> None:
    url = f"redis://user:{SECRET}@127.0.0.1:{own_redis_server.port}/0"
    if away:
        own_redis_server.kill()

    with open_desk(dlock_url=url) as desk:

        @desk.locked("k", name="charge")
        def charge() -> None: ...

        result = charge.delay()
        desk.deliver()
        said = f"{result.traceback} {result.result!r} {caplog.text}"

        assert result.state == "RETRY"
        assert isinstance(result.result, BackendUnavailable)
        assert SECRET not in said


def test_a_store_that_is_away_does_not_keep_a_worker_from_starting(make_lab: MakeLab) -> None:
    lab = make_lab(celery={"dlock_url": NOWHERE})

    with lab.worker("threads"):
        result = lab.app.tasks["apply"].delay("42")
        until("the task waits for its store", lambda: result.state == "RETRY")

    assert lab.journal.read() == []
