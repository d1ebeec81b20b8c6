"""What the doctor finds in what Celery was told of locked tasks."""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import Debounce, Queue, Replace, Unique
from celery_dlock.ops.doctor.examine import examine
from tests.inspection.patients import found, patient

ROOT = Path(__file__).resolve().parents[2]

KINDS = ("tasks", "results", "unique", "debounced", "metrics", "settings")

WEEK = Unique(period=7 * 86_400)
DEBOUNCE = Debounce(1, 2, by="{order_id}")
SKIPS = {"lock_on_contention": "skip"}
QUEUES = {"lock_on_contention": "queue"}
IS_KEPT = {"lock_on_contention": Queue(keep=True)}
COMES_BACK = {"lock_on_contention": "reschedule"}

EARLY = {"task_acks_late": False}
KILLED = {"task_reject_on_worker_lost": False}
AHEAD = {"worker_prefetch_multiplier": 4}
RESULTS = {"result_backend": "cache+memory://"}
OVER_RPC = {"result_backend": "rpc://"}


def examined(folder: Path, task: dict[str, Any], **conf: Any) -> dict[str, str]:
    """What is found of the tasks."""
    names = found(folder, task=task, dlock_url=f"sqlite:///{folder / 'locks.db'}", **conf)
    return {name: how for name, how in names.items() if name.startswith(KINDS)}


@pytest.mark.parametrize(
    ("task", "conf", "finding"),
    [
        # What loses a task, or keeps it waiting
        (COMES_BACK, {}, {}),
        (COMES_BACK, EARLY, {"tasks-acks-late": "weak"}),
        (QUEUES, EARLY, {"tasks-acks-late": "weak"}),
        (IS_KEPT, EARLY, {}),
        (COMES_BACK, KILLED, {"tasks-killed-child": "weak"}),
        (IS_KEPT, KILLED, {}),
        (QUEUES, AHEAD, {"tasks-prefetch": "weak"}),
        (
            {"lock_on_contention": Replace()},
            {"worker_prefetch_multiplier": 0},
            {"tasks-prefetch": "weak"},
        ),
        (COMES_BACK, AHEAD, {}),
        # A body that may hang
        ({}, {"task_time_limit": None}, {"tasks-time-limit": "weak"}),
        ({}, {"task_time_limit": None, "dlock_max_hold": 4000}, {}),
        # A skip that nobody is told of
        (SKIPS, {}, {"tasks-skip-unseen": "weak"}),
        ({**SKIPS, "ignore_result": True}, RESULTS, {"tasks-skip-unseen": "weak"}),
        (SKIPS, RESULTS, {}),
        (SKIPS, {"dlock_sinks": [print]}, {}),
        # Counters that nobody sees; a pool of one process may serve them itself
        ({}, {"dlock_sinks": ["prometheus"]}, {"metrics-directory": "weak"}),
        ({}, {"dlock_sinks": ["prometheus"], "worker_pool": "threads"}, {}),
        # What a unique task cannot keep
        ({"lock_unique": "done"}, RESULTS, {}),
        ({"lock_unique": "done"}, OVER_RPC, {"unique-rpc": "weak"}),
        ({"lock_unique": DEBOUNCE}, OVER_RPC, {"debounced-rpc": "weak"}),
        ({"lock_unique": DEBOUNCE}, {"dlock_done_ttl": 0}, {}),
        ({}, OVER_RPC, {}),
        ({"lock_unique": "start"}, {"dlock_done_ttl": 0}, {"unique-duplicates": "weak"}),
        ({"lock_unique": WEEK}, RESULTS, {"unique-result": "weak"}),
        ({"lock_unique": WEEK}, {}, {}),
        ({"lock_unique": WEEK, "ignore_result": True}, RESULTS, {}),
        ({"lock_unique": WEEK}, {**RESULTS, "result_expires": timedelta(days=7)}, {}),
        ({"lock_unique": Unique(ttl=60), "lock_on_contention": Queue(max_wait=60)}, {}, {}),
        (
            {"lock_unique": Unique(ttl=60), "lock_on_contention": Queue(max_wait=61)},
            {},
            {"unique-ttl": "weak"},
        ),
        ({"lock_unique": "done", "lock_on_contention": "queue"}, {}, {}),
        (
            {"lock_unique": "done", "lock_on_contention": Queue(max_wait=None)},
            {},
            {"unique-ttl": "weak"},
        ),
        # A result that is tried to be stored only once
        ({}, {"result_backend": "redis://:hunter2@results/1"}, {"results-retry": "weak"}),
        ({}, {"result_backend": "sentinel://a:1/0;sentinel://b:1/0"}, {"results-retry": "weak"}),
        ({}, {"result_backend": "db+postgresql://results/shop"}, {"results-retry": "weak"}),
        ({"ignore_result": True}, {"result_backend": "redis://results/1"}, {}),
        ({}, {"result_backend": "redis://results/1", "result_backend_always_retry": True}, {}),
        ({}, RESULTS, {}),
        # A worker without children loses none
        (COMES_BACK, {**KILLED, "worker_pool": "threads"}, {}),
        # A token that is strict; where it is best effort: see the tests of Sentinels
        ({"fenced": True}, {}, {}),
        # A backoff that outlasts the broker
        (
            COMES_BACK,
            {"broker_transport_options": {"visibility_timeout": 30}},
            {"settings": "broken"},
        ),
    ],
)
def test_what_a_task_is_promised_and_is_not_given_is_found(
    tmp_path: Path, task: dict[str, Any], conf: dict[str, Any], finding: dict[str, str]
) -> None:
    assert examined(tmp_path, task, **conf) == finding


def test_a_directory_that_the_workers_processes_share_is_seen(tmp_path: Path) -> None:
    """The library of Prometheus looks for it when it is imported."""
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from tests.inspection.patients import found\n"
        "print(*found(Path(sys.argv[1]), dlock_url='memory://', dlock_sinks=['prometheus']))\n"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    env = {**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(tmp_path)}
    done = subprocess.run(
        command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout.split() == ["memory-prefork", "memory-one-process"], done.stderr


def test_the_task_s_own_options_count_and_it_is_named(tmp_path: Path) -> None:
    late = {**COMES_BACK, "acks_late": False}
    with patient(tmp_path, late, dlock_url=f"sqlite:///{tmp_path / 'locks.db'}") as app:
        (finding,) = (each for each in examine(app) if each.check.startswith("tasks"))

    assert (finding.check, finding.where) == ("tasks-acks-late", "task charge")
    assert "acks_late=True and reject_on_worker_lost=True" in finding.fix


def test_a_setting_that_no_worker_starts_with_is_found(tmp_path: Path) -> None:
    store = f"sqlite:///{tmp_path / 'locks.db'}"

    assert found(tmp_path, dlock_url=store, dlock_tll=3) == {"settings": "broken"}
    assert found(tmp_path) == {"settings": "broken"}
    assert found(tmp_path, dlock_url=store, dlock_require=["multi-host"]) == {"settings": "broken"}


@pytest.mark.parametrize(
    ("conf", "words"),
    [
        ({"dlock_sinks": ["no.such:sink"]}, "the sink 'no.such:sink' cannot be imported"),
        ({"include": ["no.such"]}, "ModuleNotFoundError: No module named 'no'"),
    ],
)
def test_what_cannot_be_imported_is_found(tmp_path: Path, conf: dict[str, Any], words: str) -> None:
    with patient(tmp_path, dlock_url=f"sqlite:///{tmp_path / 'locks.db'}", **conf) as app:
        (finding,) = examine(app)

    assert (finding.check, finding.severity) == ("settings", "broken")
    assert words in finding.found
