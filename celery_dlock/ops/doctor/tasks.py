"""The tasks of an application that take locks, and what Celery was told of them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self

from celery_dlock.core.unique import Unique
from celery_dlock.messages.countdown import visibility_timeout
from celery_dlock.ops.doctor.finding import (
    Case,
    Check,
    Checks,
    Finding,
    Weak,
    judged,
    listed,
    place_of,
)
from celery_dlock.policies.base import Policy, Queueing, queueing
from celery_dlock.policies.shipped import Skip
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import Guarantee, LockBackend


@dataclass(frozen=True, slots=True)
class Locked:
    """One locked task of an application whose configuration is *conf*.

    ``longest`` is how many seconds a body may run, 0 if nothing limits that, and ``done_ttl`` for
    how many the *store* knows that it has finished. ``unique`` is not set for a debounced task.
    """

    name: str
    task: Any
    conf: Any
    policy: Policy
    longest: float
    fenced: bool
    unique: Unique | None
    debounced: bool
    done_ttl: float | None
    store: type[LockBackend]

    @classmethod
    def all_of(cls, case: Case) -> list[Self]:
        """Those of *case*, by name."""
        tasks = sorted(case.app.tasks.items())
        return [cls._of(case, *named) for named in tasks if hasattr(named[1], "lock_definition")]

    @classmethod
    def _of(cls, case: Case, name: str, task: Any) -> Self:
        definition, locks = task.lock_definition, runtime(case.app)
        limit = task.time_limit or case.conf.task_time_limit
        return cls(
            *(name, task, case.conf, definition.policy),
            longest=limit or case.settings.max_hold or 0.0,
            fenced="fencing_token" in definition.injects,
            unique=definition.unique and definition.unique.options,
            debounced=definition.debounce is not None,
            done_ttl=case.settings.done_ttl,
            store=type(locks.backend),
        )

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
    def comes_again(self) -> str:
        """What the broker does while a body hangs, if it does something."""
        again = self.late and visibility_timeout(self.task.app) < math.inf
        return " Meanwhile the broker delivers its message again." if again else ""

    @property
    def countdown(self) -> float:
        """Seconds that a retry may wait in the broker, as far as that is configured."""
        options = vars(type(self.task))
        backs_off = options.get("autoretry_for") and options.get("retry_backoff")
        most = options.get("retry_backoff_max", 600) if backs_off else 0
        return float(max(self.task.default_retry_delay or 0, most))

    @property
    def has_result(self) -> bool:
        return bool(self.conf.result_backend) and not self.task.ignore_result

    @property
    def over_rpc(self) -> bool:
        return str(self.conf.result_backend).startswith("rpc")

    @property
    def result_lasts(self) -> float:
        """Seconds until its result is deleted, infinite if that is never or there is none."""
        expires = self.conf.result_expires or math.inf
        seconds = expires.total_seconds() if isinstance(expires, timedelta) else expires
        return float(seconds) if self.has_result else math.inf


CHECKS: Mapping[str, Check[Locked]] = {
    "tasks-acks-late": Weak(
        lambda task: not (task.late or task.kept),
        "acks_late is False, which is Celery's default",
        promise="A killed worker loses the tasks that it runs, because their messages are already "
        "acknowledged.",
        fix="acks_late=True and reject_on_worker_lost=True of the task or of its base class, or "
        "on_contention=Queue(keep=True)",
    ),
    "tasks-killed-child": Weak(
        lambda task: (
            task.conf.worker_pool == "prefork"  # others have no children
            and task.late
            and not (task.kept or task.task.reject_on_worker_lost)
        ),
        "reject_on_worker_lost is not set",
        promise="A task whose process is killed, for example out of memory, fails and does not run "
        "again.",
        fix="reject_on_worker_lost=True of the task or of its base class, or "
        "on_contention=Queue(keep=True)",
    ),
    "tasks-time-limit": Weak(
        lambda task: not task.longest and task,
        "it has no time limit, and dlock_max_hold is not set",
        promise="A body that hangs holds its key for ever.{0.comes_again}",
        fix="task_time_limit, or dlock_max_hold",
    ),
    "tasks-prefetch": Weak(
        lambda task: task.waits and task.conf.worker_prefetch_multiplier != 1 and task,
        "worker_prefetch_multiplier = {0.conf.worker_prefetch_multiplier}",
        promise="A woken task may wait in a worker that is busy with others, and its key is idle "
        "meanwhile. Tasks also arrive in another order than they were sent.",
        fix="worker_prefetch_multiplier = 1",
    ),
    "tasks-skip-unseen": Weak(
        lambda task: (
            isinstance(task.policy, Skip)
            and not task.has_result
            and not (task.conf.get("dlock_sinks") or task.conf.get("dlock_history"))
        ),
        "no result is kept (ignore_result, or no result_backend), and no sink is set",
        promise="Nobody can see that a task was skipped, nor which task held the key.",
        fix="result_backend and ignore_result=False, or dlock_sinks",
    ),
    "debounced-rpc": Weak(
        lambda task: task.debounced and task.over_rpc,
        "result_backend = rpc://, which sends a result to the newest caller only",
        promise="A caller that is not the newest gets a result object that never becomes ready.",
        fix="a result_backend that stores results",
    ),
    "unique-rpc": Weak(
        lambda task: task.unique and task.over_rpc,
        "result_backend = rpc://, which sends a result only to the caller that has published",
        promise="A duplicate call of a unique task gets a result object that never becomes ready.",
        fix="a result_backend that stores results",
    ),
    "unique-duplicates": Weak(
        lambda task: task.unique and task.done_ttl == 0,
        "dlock_done_ttl = 0, so a duplicate of a finished task is not dropped",
        promise="A unique task whose message seems to be lost is published again under its id. If "
        "the first message was only late, the task may run twice.",
        fix="leave dlock_done_ttl out",
    ),
    "unique-result": Weak(
        lambda task: task.unique and task.result_lasts < (task.unique.period or 0) and task,
        "its Unique(period=…) is longer than result_expires = {0.result_lasts:g}",
        promise="A duplicate call late in the period gets a result object that never becomes "
        "ready.",
        fix="result_expires as long as the period, or ignore_result=True",
    ),
    "unique-ttl": Weak(
        lambda task: (
            task.unique and task.waits and (task.waits.max_wait or math.inf) > task.unique.ttl
        ),
        "its Unique(ttl=…) is shorter than the max_wait of its policy",
        promise="The unique claim of a waiting task may end while it still waits; then a duplicate "
        "is published.",
        fix="a ttl as long as max_wait, which is a day by default",
    ),
    "tasks-fencing": Weak(
        lambda task: task.fenced and task.store.guarantee is Guarantee.BEST_EFFORT and task.store,
        "it asks for fencing_token, and {0.__name__} is best effort",
        promise="After a failover a later holder's token may be smaller: then the fence refuses "
        "it, or lets a late write pass.",
        fix="use fencing.mint(), so that the database issues the token; or use another store, with "
        'dlock_require = ["monotone-fencing"]',
    ),
}

#: Result backends that try again only if they are told to.
_RETRY = re.compile(r"(redis|rediss|redis\+socket|sentinel|db\+[^:]*)://")

#: Of the names of the tasks that store results in such a backend.
RESULTS: Checks[Sequence[str]] = {
    "results-retry": Weak(
        listed,
        "result_backend_always_retry is not set; {} store results",
        promise="If the result backend is unavailable for a moment, a task whose body has "
        "succeeded ends as FAILURE, because Celery cannot store its result.",
        fix="result_backend_always_retry = True",
    )
}


def examine_tasks(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    """All that concerns *tasks*, the locked ones of *case*."""
    for name, check in CHECKS.items():
        if failing := [task for task in tasks if check.broken_by(task)]:
            place = f"task {listed(task.name for task in failing)}"
            yield from judged({name: check}, failing[0], place)
    url = str(case.conf.result_backend or "")
    if _RETRY.match(url) and not case.conf.result_backend_always_retry:
        place = f"results {url.partition('://')[0]}://{place_of(url.partition(';')[0])}"
        storing = [task.name for task in tasks if not task.task.ignore_result]
        yield from judged(RESULTS, storing, place)
