"""What the doctor finds in what Celery was told of locked tasks."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import Debounce, Queue, Replace, Unique
from celery_dlock.ops.doctor.examine import examine
from tests.inspection.patients import found, patient

KINDS = ("tasks", "results", "unique", "newest", "settings")

WEEK = Unique(period=7 * 86_400)
DEBOUNCE = Debounce(1, 2, by="{order_id}")


def examined(folder: Path, task: dict[str, Any], **conf: Any) -> dict[str, str]:
    """What is found of the tasks."""
    names = found(folder, task=task, dlock_url=f"sqlite:///{folder / 'locks.db'}", **conf)
    return {name: how for name, how in names.items() if name.startswith(KINDS)}


@pytest.mark.parametrize(
    ("policy", "conf", "finding"),
    [
        ("reschedule", {}, {}),
        ("reschedule", {"task_acks_late": False}, {"tasks-acks-late": "weak"}),
        ("queue", {"task_acks_late": False}, {"tasks-acks-late": "weak"}),
        (Queue(keep=True), {"task_acks_late": False}, {}),
        ("reschedule", {"task_reject_on_worker_lost": False}, {"tasks-killed-child": "weak"}),
        (Queue(keep=True), {"task_reject_on_worker_lost": False}, {}),
        ("queue", {"worker_prefetch_multiplier": 4}, {"tasks-prefetch": "weak"}),
        (Replace(), {"worker_prefetch_multiplier": 0}, {"tasks-prefetch": "weak"}),
        ("reschedule", {"worker_prefetch_multiplier": 4}, {}),
    ],
)
def test_what_loses_a_task_or_keeps_it_waiting_is_found(
    tmp_path: Path, policy: Any, conf: dict[str, Any], finding: dict[str, str]
) -> None:
    assert examined(tmp_path, {"lock_on_contention": policy}, **conf) == finding


def test_a_worker_without_children_loses_none(tmp_path: Path) -> None:
    conf = {"task_reject_on_worker_lost": False, "worker_pool": "threads"}

    assert examined(tmp_path, {"lock_on_contention": "reschedule"}, **conf) == {}


def test_the_task_s_own_options_count_and_it_is_named(tmp_path: Path) -> None:
    late = {"lock_on_contention": "reschedule", "acks_late": False}
    with patient(tmp_path, late, dlock_url=f"sqlite:///{tmp_path / 'locks.db'}") as app:
        (finding,) = (each for each in examine(app) if each.check.startswith("tasks"))

    assert (finding.check, finding.where) == ("tasks-acks-late", "task charge")
    assert "task_acks_late = True" in finding.fix
    assert "task_reject_on_worker_lost = True" in finding.fix


@pytest.mark.parametrize(
    ("task", "conf", "finding"),
    [
        ({}, {}, {"tasks-skip-unseen": "weak"}),
        (
            {"ignore_result": True},
            {"result_backend": "cache+memory://"},
            {"tasks-skip-unseen": "weak"},
        ),
        ({}, {"result_backend": "cache+memory://"}, {}),
        ({}, {"dlock_sinks": [print]}, {}),
    ],
)
def test_a_skip_that_nobody_is_told_of_is_found(
    tmp_path: Path, task: dict[str, Any], conf: dict[str, Any], finding: dict[str, str]
) -> None:
    assert examined(tmp_path, {"lock_on_contention": "skip", **task}, **conf) == finding


@pytest.mark.parametrize(
    ("task", "conf", "finding"),
    [
        ({"lock_unique": "done"}, {"result_backend": "cache+memory://"}, {}),
        ({"lock_unique": "done"}, {"result_backend": "rpc://"}, {"unique-rpc": "weak"}),
        ({"lock_unique": DEBOUNCE}, {"result_backend": "rpc://"}, {"newest-rpc": "weak"}),
        ({"lock_unique": DEBOUNCE}, {"dlock_done_ttl": 0}, {}),
        ({}, {"result_backend": "rpc://"}, {}),
        ({"lock_unique": "start"}, {"dlock_done_ttl": 0}, {"unique-copies": "weak"}),
        ({"lock_unique": WEEK}, {"result_backend": "cache+memory://"}, {"unique-result": "weak"}),
        ({"lock_unique": WEEK}, {}, {}),
        ({"lock_unique": WEEK, "ignore_result": True}, {"result_backend": "cache+memory://"}, {}),
        (
            {"lock_unique": WEEK},
            {"result_backend": "cache+memory://", "result_expires": timedelta(days=7)},
            {},
        ),
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
    ],
)
def test_what_a_unique_task_cannot_keep_is_found(
    tmp_path: Path, task: dict[str, Any], conf: dict[str, Any], finding: dict[str, str]
) -> None:
    assert examined(tmp_path, task, **conf) == finding


@pytest.mark.parametrize(
    ("task", "conf", "finding"),
    [
        ({}, {"result_backend": "redis://:hunter2@results/1"}, {"results-retry": "weak"}),
        ({}, {"result_backend": "sentinel://a:1/0;sentinel://b:1/0"}, {"results-retry": "weak"}),
        ({}, {"result_backend": "db+postgresql://results/shop"}, {"results-retry": "weak"}),
        ({"ignore_result": True}, {"result_backend": "redis://results/1"}, {}),
        ({}, {"result_backend": "redis://results/1", "result_backend_always_retry": True}, {}),
        ({}, {"result_backend": "cache+memory://"}, {}),
    ],
)
def test_a_result_that_is_tried_to_be_stored_only_once_is_found(
    tmp_path: Path, task: dict[str, Any], conf: dict[str, Any], finding: dict[str, str]
) -> None:
    assert examined(tmp_path, task, **conf) == finding


def test_a_token_that_is_strict_is_nothing_to_find(tmp_path: Path) -> None:
    """Where it is best effort it is found: see the tests of Sentinels."""
    assert examined(tmp_path, {"fenced": True}) == {}


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
    assert finding.found.startswith(words)


def test_a_backoff_that_outlasts_the_broker_is_found(tmp_path: Path) -> None:
    hasty = {"broker_transport_options": {"visibility_timeout": 30}}
    task = {"lock_on_contention": "reschedule"}

    assert examined(tmp_path, task, **hasty) == {"settings": "broken"}
