"""The store in one process: whether the application is one."""

from __future__ import annotations

from collections.abc import Iterator

from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding

MEND = "dlock_url = 'sqlite:////var/lib/shop/dlock.db' on one machine, or a store with a server"

#: The pools that run tasks in the worker's own process.
ONE_PROCESS = frozenset({"solo", "threads", "gevent", "eventlet"})


def examine_memory(case: Case) -> Iterator[Finding]:
    """``memory://``."""
    where = "store memory://"
    pool = str(case.conf.worker_pool)
    if pool not in ONE_PROCESS:
        yield Finding(
            "memory-prefork",
            "broken",
            where,
            promise="Each process has locks of its own, so a worker refuses to start.",
            found=f"worker_pool = {pool!r}",
            mend=MEND,
        )
    yield Finding(
        "memory-one-process",
        "weak",
        where,
        promise="Locks hold in one process only, and end with it: a second worker, a web process "
        "or beat has others, and messages that wait are lost when the worker ends.",
        found="dlock_url = 'memory://'",
        mend=MEND,
    )
