"""The tasks that the tests' workers run. Every body notes what it does in the journal."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import (
    Contention,
    Decision,
    Fail,
    FullJitter,
    LockedTask,
    Policy,
    Reschedule,
    RunLater,
    Skip,
    Wait,
)
from tests.services.effects import Effects
from tests.services.lab import Journal, hold_at
from tests.services.until import until

SOON = Reschedule(backoff=FullJitter(base=0.05, cap=0.2))


class InTwoSeconds:
    """A policy that always comes back after the same time, so that attempts can be counted."""

    def decide(self, contention: Contention) -> Decision:
        return RunLater(2.0)


POLICIES: dict[str, Policy] = {
    "reschedule": SOON,
    "reschedule by up to a minute": Reschedule(),
    "in two seconds": InTwoSeconds(),
    "skip": Skip(),
    "fail": Fail(),
    "wait": Wait(timeout=30),
}


def register(app: Celery, folder: Path, lock: Mapping[str, Any], task: Mapping[str, Any]) -> None:
    """Define the tasks on *app*; *lock* and *task* are options of its locked tasks."""
    journal = Journal(folder / "journal")
    options = {"ttl": 5.0, **lock}
    options["on_contention"] = POLICIES[options.pop("policy", "reschedule")]
    options = {f"lock_{name}": value for name, value in options.items()}

    @app.task(
        name="apply",
        base=LockedTask,
        bind=True,
        shared=False,
        **{"lock_key": "order:{order}", **options, **task},
    )
    def apply(
        self: Any,
        order: str,
        number: int = 0,
        hold: str | None = None,
        fails: bool = False,
        *,
        fencing_token: int,
    ) -> int:
        """Notes start and end; with *hold* it stays in the body until the test says go."""
        waits = (self.request.get("dlock") or {}).get("waits", 0)
        about = {"order": order, "number": number, "token": fencing_token, "waits": waits}
        about |= {"id": self.request.id, "retries": self.request.retries}
        journal.write("start", **about)
        if hold:
            hold_at(folder, hold)
        journal.write("end", **about)
        if fails:
            raise ValueError(order)
        return number

    class Watched(LockedTask):
        """Notes that its lock is lost."""

        abstract = True

        def on_lock_lost(
            self, lease: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> None:
            reasons = [term.lost for term in lease.terms]
            journal.write("lost", id=task_id, token=lease.fencing_token, reasons=reasons)

    @app.task(
        name="pay",
        base=Watched,
        bind=True,
        shared=False,
        **{"lock_key": "order:{order}", **options, **task},
    )
    def pay(
        self: Any,
        order: str,
        number: int = 0,
        hold: str | None = None,
        after: str | None = None,
        *,
        lease: Any,
    ) -> int:
        """Pays once, behind the fence; waits before it (*hold*) and *after* it as the test says."""
        about = {"id": self.request.id, "order": order, "token": lease.fencing_token}
        journal.write("start", **about)
        if hold:
            hold_at(folder, hold)
        new = Effects(folder).pay(lease, self.request.id)
        journal.write("paid", new=new, **about)
        if after:
            hold_at(folder, after)
        journal.write("end", lost=lease.lost, **about)
        return number

    @app.task(name="outlive", base=Watched, shared=False, **{"lock_key": "{order}", **options})
    def outlive(order: str, *, lease: Any) -> bool:
        """Stays in the body until its lease is lost, and notes how soon it knew."""
        journal.write("start", order=order)
        until("the lease is lost", lambda: lease.lost)
        journal.write("noticed", order=order)
        return True

    @app.task(
        name="forking", base=Watched, shared=False, **{"lock_key": "order:{order}", **options}
    )
    def forking(order: str, how: str, *, lease: Any) -> str:
        """Forks in the body; the child ends in its own way, the parent waits for the test."""
        pid = os.fork()
        if pid == 0 and how == "os._exit":
            os._exit(0)
        if pid == 0:
            sys.exit(0)
        os.waitpid(pid, 0)
        journal.write("forked", order=order)
        hold_at(folder, "forked")
        return "parent"

    @app.task(name="note", shared=False)
    def note(result: Any, what: str = "callback") -> Any:
        """A plain task to stand behind a link, a chain or a chord."""
        journal.write(what, result=result)
        return result

    @app.task(name="plain", shared=False)
    def plain(order: str, number: int = 0) -> int:
        """What ``quick`` does, without a lock: the benchmarks compare the two."""
        journal.write("ran", order=order, number=number)
        return number

    @app.task(name="quick", base=LockedTask, shared=False, **{"lock_key": "{order}", **options})
    def quick(order: str, number: int = 0) -> int:
        """As little as a locked body can do."""
        journal.write("ran", order=order, number=number)
        return number
