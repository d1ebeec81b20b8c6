"""A child of the worker is killed: its key is free when the process is gone, and not before.

The leases outlast the tests, so only the main process can have freed anything.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest
from celery.exceptions import TaskRevokedError, TimeLimitExceeded, WorkerLostError

from celery_dlock.core.state import KeyState
from celery_dlock.runtime import runtime
from tests.faults.conftest import MakeLab, nothing_is_held
from tests.services.lab import Lab
from tests.services.redelivery import not_finished
from tests.services.redis import RedisServer
from tests.services.stubborn import is_alive
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

LONG = {"ttl": 60.0}
#: Seconds; far more than it takes, far less than the lease. Celery itself takes longer to notice.
SOON = 5.0
HIDDEN = {"imports": ["tests.services.no_pidfd"]}
LATE = "tests.services.slow_to_give_back"


@pytest.fixture
def lab(make_lab: MakeLab) -> Lab:
    return make_lab(lock={**LONG, "policy": "queue"})


def child(lab: Lab) -> int:
    """The process that has started a body."""
    return int(lab.journal.wait_for("start")[-1]["pid"])


def kill(pid: int) -> None:
    """As the OOM killer does."""
    os.kill(pid, signal.SIGKILL)


def is_held_by(lab: Lab, task_id: str) -> bool:
    return any(holder.task.startswith(task_id) for holder in state(lab).holders)


def state(lab: Lab) -> KeyState:
    return runtime(lab.app).backend.peek("order:42")


def freed(lab: Lab) -> None:
    until("the key is free", lambda: nothing_is_held(lab, "42"), SOON)


def parked(lab: Lab, count: int) -> None:
    until(f"{count} are parked", lambda: state(lab).parked == count)


@pytest.mark.parametrize("celery", [{}, HIDDEN], ids=["told by the kernel", "asked"])
def test_a_child_that_is_killed_frees_its_key_for_the_next_in_the_queue(
    make_lab: MakeLab, celery: dict[str, Any]
) -> None:
    lab = make_lab(celery=celery, lock={**LONG, "policy": "queue"})
    with lab.worker(concurrency=2):
        # Given a body at work, and a message that waits for it
        first = lab.app.tasks["apply"].delay("42", 1, hold="for ever")
        pid = child(lab)
        second = lab.app.tasks["apply"].delay("42", 2)
        parked(lab, 1)
        # When the process is killed
        kill(pid)
        # Then the next one runs, and Celery's failure stands
        assert second.get(timeout=SOON) == 2
        with pytest.raises(WorkerLostError):
            first.get(timeout=30)
        freed(lab)


def test_what_is_terminated_keeps_its_key_while_it_still_writes(lab: Lab) -> None:
    with lab.worker(concurrency=2):
        # Given a body that stays for a second when it is told to go
        stubborn = lab.app.tasks["stubborn"].delay("42")
        pid = child(lab)
        after = lab.app.tasks["apply"].delay("42", 2)
        parked(lab, 1)
        # When it is revoked
        lab.app.control.revoke(stubborn.id, terminate=True)
        until("Celery says so", lambda: stubborn.state == "REVOKED")
        # Then its key is free when it is gone
        until("the key is another's", lambda: not is_held_by(lab, stubborn.id), SOON)
        assert not is_alive(pid)
        assert after.get(timeout=SOON) == 2
        with pytest.raises(TaskRevokedError):
            stubborn.get(timeout=30)
    (started,) = lab.journal.read("start", number=2)
    assert lab.journal.read("line")[-1]["at"] < started["at"]


def test_a_hard_time_limit_frees_the_key_and_is_final(lab: Lab) -> None:
    with lab.worker(concurrency=2) as worker:
        killed = lab.app.tasks["stubborn"].apply_async(("42",), time_limit=1)
        pid = child(lab)
        after = lab.app.tasks["apply"].delay("42", 2)
        until("the key is another's", lambda: not is_held_by(lab, killed.id), 1 + SOON)
        assert not is_alive(pid)
        assert after.get(timeout=SOON) == 2
        with pytest.raises(TimeLimitExceeded):
            killed.get(timeout=30)
        # And a copy of it that comes late does not run
        lab.app.tasks["apply"].apply_async(("42", 3), task_id=killed.id)
        until("it was dropped", lambda: f"[{killed.id}] had a duplicate dropped" in worker.log)
        freed(lab)
    assert lab.journal.read("start", number=3) == []


def test_a_message_that_the_broker_keeps_is_no_failure_and_runs_again(make_lab: MakeLab) -> None:
    lab = make_lab(lock=LONG, task={"reject_on_worker_lost": True})
    with lab.worker(concurrency=2) as worker:
        result = lab.app.tasks["apply"].delay("42", 1, hold="body")
        kill(child(lab))
        lab.journal.wait_for("start", count=2)
        assert result.state not in ("FAILURE", "RETRY")
        lab.go("body")
        assert result.get(timeout=SOON) == 1
        freed(lab)
        worker.stop()
    assert not_finished(lab.app) == (0, 0)


@pytest.mark.parametrize("seconds", [0.0, 1.0], ids=["cold", "soft"])
def test_a_shutdown_that_kills_its_children_leaves_no_key_behind(
    make_lab: MakeLab, seconds: float
) -> None:
    celery = {"worker_soft_shutdown_timeout": seconds, "imports": [LATE]}
    lab = make_lab(celery, lock=LONG)
    with lab.worker(concurrency=2) as worker:
        # Given a body that does not go like others, which give back their key themselves
        lab.app.tasks["stubborn"].delay("42")
        pid = child(lab)
        worker.stop(signal.SIGQUIT)
        # Then nothing is held as the worker has gone
        assert nothing_is_held(lab, "42")
        assert not is_alive(pid)
        # And the message has come back, and runs
        worker.start()
        lab.journal.wait_for("start", count=2)


def test_a_child_that_is_stopped_keeps_its_key(lab: Lab) -> None:
    with lab.worker(concurrency=2):
        first = lab.app.tasks["apply"].delay("42", 1, hold="body")
        pid = child(lab)
        os.kill(pid, signal.SIGSTOP)
        # When the main process has dealt with the death of another child
        lab.app.tasks["apply"].delay("43", 2, hold="for ever")
        (other,) = lab.journal.wait_for("start", order="43")
        kill(other["pid"])
        until("that one's key is free", lambda: nothing_is_held(lab, "43"), SOON)
        # Then the first one has its key, and keeps it until it is through
        assert is_held_by(lab, first.id)
        os.kill(pid, signal.SIGCONT)
        lab.go("body")
        assert first.get(timeout=SOON) == 1
        freed(lab)
    (start,) = lab.journal.read("start", order="42")
    (end,) = lab.journal.read("end", order="42")
    assert start["token"] == end["token"]


def test_a_result_on_its_way_from_a_child_that_died_stands(make_lab: MakeLab) -> None:
    lab = make_lab(lock={**LONG, "policy": "queue"})
    with lab.worker(concurrency=1) as one, lab.worker(concurrency=1) as two:
        # Given a main process that does not look while its child ends the task
        first = lab.app.tasks["apply"].delay("42", 1, hold="body")
        pid = child(lab)
        worker = one if one.pid == os.getpgid(pid) else two
        worker.send(signal.SIGSTOP)
        lab.go("body")
        assert first.get(timeout=SOON) == 1
        # And the key in other hands, as the child dies
        second = lab.app.tasks["apply"].delay("42", 2, hold="second")
        lab.journal.wait_for("start", number=2)
        kill(pid)
        worker.send(signal.SIGCONT)
        until("the result has arrived", lambda: f"[{first.id}] succeeded" in worker.log)
        until("the death was noticed", lambda: "exited with 'signal 9" in worker.log)
        # Then the key stays where it is
        assert is_held_by(lab, second.id)
        lab.go("second")
        assert second.get(timeout=SOON) == 2
        assert first.state == "SUCCESS"


def test_nothing_watches_where_bodies_have_no_process_of_their_own(lab: Lab) -> None:
    with lab.worker("threads"):
        names = lab.app.tasks["threads"].delay("42").get(timeout=30)
    assert not any("children" in name for name in names)


def test_a_store_that_is_away_when_a_child_is_killed_holds_up_nothing(
    make_lab: MakeLab, own_redis_server: RedisServer
) -> None:
    options = {"socket_timeout": 0.5, "socket_connect_timeout": 0.5}
    celery = {"dlock_url": own_redis_server.url, "dlock_backend_options": options}
    lab = make_lab(celery, lock={"ttl": 4.0, "policy": "queue"})
    with lab.worker(concurrency=1) as worker:
        lab.app.tasks["apply"].delay("42", 1, hold="for ever")
        pid = child(lab)
        own_redis_server.pause()
        kill(pid)
        until("it is told", lambda: "may be held until its lease expires" in worker.log)
        # Then the worker does what needs no lock, and the lease frees the key
        assert lab.app.tasks["plain"].delay("42").get(timeout=30) == 0
        own_redis_server.resume()
        assert lab.app.tasks["apply"].delay("42", 2).get(timeout=30) == 2
