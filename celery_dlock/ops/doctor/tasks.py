"""The tasks of an application that take locks, and what Celery was told of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from celery_dlock.contention import Policy, Queueing, Skip, queueing
from celery_dlock.ops.doctor.finding import Case, Finding, listed, place_of
from celery_dlock.stores.base import Guarantee, LockBackend


@dataclass(frozen=True, slots=True)
class Locked:
    """One task; ``longest`` is how many seconds a body may run, if anything limits that."""

    name: str
    task: Any
    policy: Policy
    longest: float | None
    fenced: bool

    @classmethod
    def all_of(cls, case: Case, default: Policy) -> list[Self]:
        """Those of *case*, by name. *default* is the policy of tasks that name none."""
        tasks = sorted(case.app.tasks.items())
        return [
            cls._of(name, task, case, default)
            for name, task in tasks
            if hasattr(task, "lock_definition")
        ]

    @classmethod
    def _of(cls, name: str, task: Any, case: Case, default: Policy) -> Self:
        definition = task.lock_definition
        limit = task.time_limit or case.conf.task_time_limit
        longest = limit or definition.max_hold or case.settings.max_hold
        fenced = "fencing_token" in definition.injects
        return cls(name, task, definition.policy_in(default), longest, fenced)

    @property
    def waits(self) -> Queueing | None:
        """How its messages wait in the store, if they do."""
        return queueing(self.policy)

    @property
    def kept(self) -> bool:
        """Whether the store has its message until it is through."""
        return self.waits is not None and self.waits.keep

    @property
    def late(self) -> bool:
        """Whether its message is acknowledged when it is through."""
        return bool(self.task.acks_late)

    @property
    def countdown(self) -> float:
        """Seconds that a retry may wait in the broker, as far as that is configured."""
        options = vars(type(self.task))
        backs_off = options.get("autoretry_for") and options.get("retry_backoff")
        most = options.get("retry_backoff_max", 600) if backs_off else 0
        return float(max(self.task.default_retry_delay or 0, most))


def examine_tasks(
    case: Case, tasks: Sequence[Locked], store: type[LockBackend]
) -> Iterator[Finding]:
    """All that concerns *tasks*, whose locks are kept in a *store*."""
    yield from _killed_workers(tasks)
    yield from _killed_children(case, tasks)
    yield from _prefetched(case, tasks)
    yield from _skipped(case, tasks)
    yield from _results(case, tasks)
    yield from _unique(case, tasks)
    yield from _fenced(tasks, store)


def _killed_workers(tasks: Sequence[Locked]) -> Iterator[Finding]:
    early = [task.name for task in tasks if not task.late and not task.kept]
    if early:
        yield Finding(
            "tasks-acks-late",
            "weak",
            _named(early),
            promise="A killed worker loses the tasks that it runs, because their messages are "
            "already acknowledged.",
            found="acks_late is False, which is Celery's default",
            fix="task_acks_late = True and task_reject_on_worker_lost = True, or "
            "on_contention=Queue(keep=True)",
        )


def _killed_children(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    """Only prefork has children; then Celery takes the task for failed."""
    if case.conf.worker_pool != "prefork":
        return
    lost = [
        task.name
        for task in tasks
        if task.late and not task.kept and not task.task.reject_on_worker_lost
    ]
    if lost:
        yield Finding(
            "tasks-killed-child",
            "weak",
            _named(lost),
            promise="A task whose process is killed, for example out of memory, fails and does not "
            "run again.",
            found="reject_on_worker_lost is not set",
            fix="task_reject_on_worker_lost = True, or on_contention=Queue(keep=True)",
        )


def _prefetched(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    most = case.conf.worker_prefetch_multiplier
    queued = [task.name for task in tasks if task.waits is not None]
    if queued and most != 1:
        yield Finding(
            "tasks-prefetch",
            "weak",
            _named(queued),
            promise="A woken task may wait in a worker that is busy with others, and its key is "
            "idle meanwhile. Tasks also arrive in another order than they were sent.",
            found=f"worker_prefetch_multiplier = {most}",
            fix="worker_prefetch_multiplier = 1",
        )


def _skipped(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    conf = case.conf
    told = conf.get("dlock_sinks") or conf.get("dlock_history")
    mute = [
        task.name
        for task in tasks
        if isinstance(task.policy, Skip) and (task.task.ignore_result or not conf.result_backend)
    ]
    if mute and not told:
        yield Finding(
            "tasks-skip-unseen",
            "weak",
            _named(mute),
            promise="Nobody can see that a task was skipped, nor which task held the key.",
            found="no result is kept (ignore_result, or no result_backend), and no sink is set",
            fix="result_backend and ignore_result=False, or dlock_sinks",
        )


#: Result backends that try again only if they are told to.
_RETRY = re.compile(r"(redis|rediss|redis\+socket|sentinel|db\+[^:]*)://")


def _results(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    url = str(case.conf.result_backend or "")
    kept = [task.name for task in tasks if not task.task.ignore_result]
    if kept and _RETRY.match(url) and not case.conf.result_backend_always_retry:
        yield Finding(
            "results-retry",
            "weak",
            f"results {url.partition('://')[0]}://{place_of(url.partition(';')[0])}",
            promise="If the result backend is unavailable for a moment, a task whose body has "
            "succeeded ends as FAILURE, because Celery cannot store its result.",
            found=f"result_backend_always_retry is not set; {listed(kept)} store results",
            fix="result_backend_always_retry = True",
        )


def _unique(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    rpc = str(case.conf.result_backend).startswith("rpc")
    newest = [task.name for task in tasks if task.task.lock_definition.newest_wins]
    if newest and rpc:
        yield Finding(
            "newest-rpc",
            "weak",
            _named(newest),
            promise="A caller that is not the newest gets a result object that never becomes "
            "ready.",
            found="result_backend = rpc://, which sends a result to the newest caller only",
            fix="another result_backend, such as redis://",
        )
    claimed = [task for task in tasks if task.task.lock_definition.unique is not None]
    unique = [task for task in claimed if task.name not in newest]
    if unique and rpc:
        yield Finding(
            "unique-rpc",
            "weak",
            _named([task.name for task in unique]),
            promise="A duplicate call of a unique task gets a result object that never becomes "
            "ready.",
            found="result_backend = rpc://, which sends a result only to the caller that has "
            "published",
            fix="another result_backend, such as redis://",
        )
    if unique and case.settings.done_ttl == 0:
        yield Finding(
            "unique-copies",
            "weak",
            _named([task.name for task in unique]),
            promise="A unique task whose message seems to be lost is published again under its id. "
            "If the first message was only late, the task may run twice.",
            found="dlock_done_ttl = 0, so a duplicate of a finished task is not dropped",
            fix="leave dlock_done_ttl out",
        )
    kept = case.conf.result_expires
    kept = kept.total_seconds() if isinstance(kept, timedelta) else kept
    gone = [
        task.name
        for task in claimed
        if kept
        and (task.task.lock_definition.unique.options.period or 0) > kept
        and not task.task.ignore_result
    ]
    if gone and case.conf.result_backend:
        yield Finding(
            "unique-result",
            "weak",
            _named(gone),
            promise="A duplicate call late in the period gets a result object that never becomes "
            "ready.",
            found=f"its Unique(period=…) is longer than result_expires = {kept:g}",
            fix="result_expires as long as the period, or ignore_result=True",
        )
    short = [
        task.name
        for task in claimed
        if task.waits is not None
        and (task.waits.max_wait or math.inf) > task.task.lock_definition.unique.options.ttl
    ]
    if short:
        yield Finding(
            "unique-ttl",
            "weak",
            _named(short),
            promise="The unique claim of a waiting task may end while it still waits; then a "
            "duplicate is published.",
            found="its Unique(ttl=…) is shorter than the max_wait of its policy",
            fix="a ttl as long as max_wait, which is a day by default",
        )


def _fenced(tasks: Sequence[Locked], store: type[LockBackend]) -> Iterator[Finding]:
    fenced = [task.name for task in tasks if task.fenced]
    if fenced and store.guarantee is Guarantee.BEST_EFFORT:
        yield Finding(
            "tasks-fencing",
            "weak",
            _named(fenced),
            promise="After a failover a later holder's token may be smaller: then the fence "
            "refuses it, or lets a late write pass.",
            found=f"it asks for fencing_token, and {store.__name__} is best effort",
            fix="use fencing.mint(), so that the database issues the token; or use another store, "
            "with "
            'dlock_require = ["monotone-fencing"]',
        )


def _named(names: Sequence[str]) -> str:
    return f"task {listed(names)}"
