"""What Prometheus is shown, by one process and from the files of several."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.beat import Service
from celery.concurrency.prefork import TaskPool
from celery.concurrency.thread import TaskPool as ThreadPool

from celery_dlock import ConfigurationError
from celery_dlock.beat.scheduler import LeaderScheduler
from celery_dlock.core.events import Subject
from celery_dlock.monitoring.prometheus import STORE_GAUGES, PrometheusSink
from celery_dlock.runtime import forget, runtime
from celery_dlock.worker.startup import CheckAtStart
from tests.monitoring.happenings import HOLDER, KEY, TASK_ID, about, acquired, one_of_each, released
from tests.services.desk import open_desk
from tests.services.exposition import exposition, samples


@pytest.fixture
def subject() -> Subject:
    """Of a task that nobody else counts: the metrics are those of the process."""
    return about(f"charge-{uuid.uuid4().hex}")


def test_the_life_of_a_lock_is_counted_by_task_and_template(subject: Subject) -> None:
    sink = PrometheusSink()

    sink(acquired(subject, took=0.004, ttl=30.0))
    sink(released(subject, held=1.5))

    found = samples(exposition(), subject.task_name)
    assert found["dlock_acquisition_seconds_count"] == found["dlock_hold_seconds_count"] == 1
    assert found["dlock_acquisition_seconds_sum"] == 0.004
    assert [found[f"dlock_acquisition_seconds_bucket {le}"] for le in (0.002, 0.005)] == [0, 1]
    assert found["dlock_hold_seconds_bucket 2.0"] == 1
    assert found["dlock_ttl_seconds"] == 30
    assert f'task="{subject.task_name}",template="order:{{order_id}}"' in exposition()


def test_no_label_says_which_key_or_whose(subject: Subject) -> None:
    for event in one_of_each(subject):
        PrometheusSink()(event)

    text = exposition()
    assert subject.task_name in text
    assert not [secret for secret in (KEY, TASK_ID, HOLDER) if secret in text]


def test_counters_start_at_zero_so_that_their_first_step_is_seen(subject: Subject) -> None:
    PrometheusSink()(acquired(subject))

    found = samples(exposition(), subject.task_name)
    assert found["dlock_stale_rejected_total"] == found["dlock_timed_out_total"] == 0
    assert "dlock_beat_sent_total" not in found, "which counts something else"


def test_several_apps_count_in_the_same_metrics(subject: Subject) -> None:
    apps = [Celery(set_as_current=False) for _ in range(2)]
    for app in apps:
        app.conf.update(dlock_url="memory://", dlock_sinks=["prometheus"])
        runtime(app).sinks.emit(acquired(subject))
        forget(app)

    assert samples(exposition(), subject.task_name)["dlock_acquisition_seconds_count"] == 2


def test_a_lease_time_that_changes_is_shown(subject: Subject) -> None:
    sink = PrometheusSink()

    for ttl in (30.0, 60.0, 60.0):
        sink(acquired(subject, ttl=ttl))

    assert samples(exposition(), subject.task_name)["dlock_ttl_seconds"] == 60


def test_threads_count_together(subject: Subject) -> None:
    sink = PrometheusSink()

    def count() -> None:
        for _ in range(1000):
            sink(acquired(subject))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert samples(exposition(), subject.task_name)["dlock_acquisition_seconds_count"] == 4000


def test_gauges_of_the_store_are_added(subject: Subject) -> None:
    found = samples(exposition({name: number for number, name in enumerate(STORE_GAUGES)}))

    assert {metric: found[metric] for metric, _ in STORE_GAUGES.values()} == {
        metric: number for number, (metric, _) in enumerate(STORE_GAUGES.values())
    }


LOST = ", so the counters of this process and its children are lost"


@pytest.mark.parametrize(
    ("directory", "reason"),
    [
        (False, "PROMETHEUS_MULTIPROC_DIR is not set"),
        (True, "PROMETHEUS_MULTIPROC_DIR was set after prometheus_client was imported"),
    ],
)
def test_a_prefork_worker_and_a_beat_say_once_that_their_counters_are_lost(
    directory: bool,
    reason: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """This process has imported the library without the variable."""
    if directory:
        monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    with open_desk(dlock_url=url, dlock_sinks=["prometheus"]) as desk:
        desk.patch.setattr("celery_dlock.runtime.will_fork", forget)  # which this process will not

        def warnings(start: Callable[[], object]) -> list[str]:
            caplog.clear()
            start()
            lines = [record.getMessage() for record in caplog.records]
            return [line for line in lines if line.endswith(LOST)]

        def worker(pool: type) -> None:
            CheckAtStart(SimpleNamespace(app=desk.app, pool_cls=pool))

        def beat() -> None:
            service = Service(desk.app, scheduler_cls=LeaderScheduler)
            service.get_scheduler(lazy=True)  # for Celery's banner
            service.scheduler.close()

        assert warnings(partial(worker, TaskPool)) == [reason + LOST]
        assert warnings(beat) == [reason + LOST]
        assert warnings(partial(worker, ThreadPool)) == [], "it may serve them itself"
        desk.app.conf.dlock_sinks = []
        forget(desk.app)
        assert warnings(partial(worker, TaskPool)) == warnings(beat) == []
        forget(desk.app)


@pytest.mark.parametrize("name", ["nowhere", "a-file"])
def test_a_folder_that_cannot_be_used_stops_the_start(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a-file").touch(0o777)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path / name))
    app = Celery(set_as_current=False)
    app.conf.update(dlock_url="memory://", dlock_sinks=["prometheus"])

    with pytest.raises(ConfigurationError, match="PROMETHEUS_MULTIPROC_DIR must name a folder"):
        runtime(app)


def test_files_that_nobody_can_read_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    (tmp_path / "counter_dlock-0.db").touch()  # its process was killed as it began
    (tmp_path / "counter_dlock-1.db").write_bytes((4096).to_bytes(8, "little") + b"\x7f" * 100)

    text = exposition({"held_keys": 3})

    assert samples(text)["dlock_held_keys"] == 3
    assert "counter_dlock-1.db cannot be read and is left out" in caplog.text
    assert "counter_dlock-0.db" not in caplog.text
