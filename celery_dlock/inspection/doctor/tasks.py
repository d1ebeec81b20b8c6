"""What Celery was told of the tasks that take locks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from celery_dlock.backends.base import Guarantee, LockBackend
from celery_dlock.contention import Skip
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding, listed
from celery_dlock.inspection.doctor.locked import Locked


def examine_tasks(
    case: Case, tasks: Sequence[Locked], store: type[LockBackend]
) -> Iterator[Finding]:
    """All that concerns *tasks*, whose locks are kept in a *store*."""
    yield from _killed_workers(tasks)
    yield from _killed_children(case, tasks)
    yield from _prefetched(case, tasks)
    yield from _skipped(case, tasks)
    yield from _fenced(tasks, store)


def _killed_workers(tasks: Sequence[Locked]) -> Iterator[Finding]:
    early = [task.name for task in tasks if not task.late and not task.kept]
    if early:
        yield Finding(
            "tasks-acks-late",
            "broken",
            _named(early),
            promise="A worker that is killed loses the tasks that it runs: their messages were "
            "acknowledged before.",
            found="acks_late is False, which is Celery's default",
            mend="task_acks_late = True and task_reject_on_worker_lost = True, or "
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
            promise="A task whose process is killed, as when memory is short, has failed and is "
            "not run again.",
            found="reject_on_worker_lost is not set",
            mend="task_reject_on_worker_lost = True, or on_contention=Queue(keep=True)",
        )


def _prefetched(case: Case, tasks: Sequence[Locked]) -> Iterator[Finding]:
    most = case.conf.worker_prefetch_multiplier
    queued = [task.name for task in tasks if task.waits is not None]
    if queued and most != 1:
        yield Finding(
            "tasks-prefetch",
            "weak",
            _named(queued),
            promise="A task whose turn has come may lie in a worker that is busy with others, and "
            "its key with it; and tasks arrive in another order than they were sent.",
            found=f"worker_prefetch_multiplier = {most}",
            mend="worker_prefetch_multiplier = 1",
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
            promise="That a task was skipped, and because of whom, is told to nobody.",
            found="no result is kept (ignore_result, or no result_backend), no sink is named",
            mend="result_backend and ignore_result=False, or dlock_sinks",
        )


def _fenced(tasks: Sequence[Locked], store: type[LockBackend]) -> Iterator[Finding]:
    fenced = [task.name for task in tasks if task.fenced]
    if fenced and store.guarantee is Guarantee.BEST_EFFORT:
        yield Finding(
            "tasks-fencing",
            "weak",
            _named(fenced),
            promise="After a failover a later holder's token may be smaller: the fence then "
            "refuses it, or lets a late write pass.",
            found=f"it asks for fencing_token, and {store.__name__} is best effort",
            mend="fencing.mint() lets the database issue the token; or take another store, and "
            'dlock_require = ["monotone-fencing"]',
        )


def _named(names: Sequence[str]) -> str:
    return f"task {listed(names)}"
