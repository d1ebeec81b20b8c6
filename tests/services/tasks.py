"""The tasks that the tests' workers run. Every body notes what it does in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
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
    Queue,
    Replace,
    Reschedule,
    RunLater,
    Skip,
)
from tests.services.audits import register_audit
from tests.services.debounced import register_debounced
from tests.services.every_policy import register_every_policy
from tests.services.lab import Journal, hold_at
from tests.services.limited import register_limited
from tests.services.losing import register_losing
from tests.services.members import register_members
from tests.services.once import register_once
from tests.services.payments import register_payments
from tests.services.provider import register_charging
from tests.services.third_time import register_third_time

SOON = Reschedule(backoff=FullJitter(base=0.05, cap=0.2))


@dataclass(frozen=True)
class After:
    """A policy that always comes back after the same time, so that attempts can be counted."""

    seconds: float

    def decide(self, contention: Contention) -> Decision:
        return RunLater(self.seconds)


POLICIES: dict[str, Policy] = {
    "reschedule": SOON,
    "reschedule by up to a minute": Reschedule(),
    "in three seconds": After(3.0),
    "queue": Queue(),
    "queue and keep": Queue(keep=True),
    "queue as published": Queue(ordered="publish"),
    "queue for a second": Queue(max_wait=1.0),
    "queue for a while": Queue(max_wait=15.0),
    "reschedule for a while": replace(SOON, max_wait=15.0),
    "replace": Replace(),
    "newest": Replace(running=True),
    "skip": Skip(),
    "fail": Fail(),
}


def register(
    app: Celery,
    folder: Path,
    lock: Mapping[str, Any],
    task: Mapping[str, Any],
    database: str | None = None,
) -> None:
    """Define the tasks on *app*; *lock* and *task* are options of its locked tasks.

    What is paid is written to the *database* of that URL, or to a file in *folder*.

    Their ``ttl`` is ``None`` for a store with one lease for all locks of a process.
    """
    journal = Journal(folder / "journal")
    options = {"ttl": 5.0, **lock}
    options["on_contention"] = POLICIES[options.pop("policy", "reschedule")]
    options = {f"lock_{name}": value for name, value in options.items()}
    register_payments(app, folder, {**options, **task}, database)
    register_audit(app, folder, {**options, **task})
    register_losing(app, folder, {**options, **task})
    register_charging(app, folder, {**options, **task})
    register_third_time(app, folder, {**options, **task})
    register_once(app, folder, {**options, **task})
    register_limited(app, folder, {**options, **task})
    register_every_policy(app, folder)
    register_debounced(app, folder, {**options, **task})
    if options["lock_ttl"] is not None:  # theirs is of their own
        register_members(app, folder)

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
        again: float | None = None,
        *,
        fencing_token: int,
    ) -> int:
        """Notes start and end; with *hold* it stays in the body until the test says go.

        With *again* it retries once, in so many seconds.
        """
        waits = (self.request.get("dlock") or {}).get("waits", 0)
        about = {"order": order, "number": number, "token": fencing_token, "waits": waits}
        about |= {"id": self.request.id, "retries": self.request.retries}
        about |= {"way": self.request.delivery_info["routing_key"]}
        journal.write("start", **about)
        if hold:
            hold_at(folder, hold)
        journal.write("end", **about)
        if again is not None and not self.request.retries:
            raise self.retry(countdown=again)
        if fails:
            raise ValueError(order)
        return number

    @app.task(
        name="collect",
        base=LockedTask,
        shared=False,
        **{"lock_key": "order:{order}", **options, **task},
    )
    def collect(numbers: list[int], order: str) -> int:
        """The locked body of a chord."""
        journal.write("start", order=order, numbers=numbers)
        journal.write("end", order=order, numbers=numbers)
        return sum(numbers)

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
