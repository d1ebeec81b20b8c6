"""The tasks that the tests' workers run. Every body notes what it does in the journal."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from celery import Celery

from celery_dlock import (
    Debounce,
    Fail,
    FullJitter,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Shared,
    Skip,
    Wait,
)
from celery_dlock.policies import Contention, Decision, Policy, RunLater
from celery_dlock.policies.base import replaces_running
from tests.services.lab import Journal, hold_at
from tests.services.losing import register_losing
from tests.services.members import register_members
from tests.services.payments import register_payments
from tests.services.provider import register_charging

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
    "queue as published": Ordered(),
    "queue for a second": Queue(max_wait=1.0),
    "queue for a while": Queue(max_wait=15.0),
    "reschedule for a while": replace(SOON, max_wait=15.0),
    "replace": Replace(),
    "newest": Replace(running=True),
    "skip": Skip(),
    "fail": Fail(),
}

#: One task for each thing that may happen to a task that finds its key taken.
HAPPENS: Mapping[str, Policy] = {
    "queues": Queue(),
    "skips": Skip(),
    "comes_back": Reschedule(backoff=FullJitter(base=30, cap=30)),
    "gives_up": Wait(timeout=0.1),
    "gives_up_queueing": Queue(max_wait=0.1),
}

#: The two limits of ``load``: so many of its tenant, and so many in all.
EACH, ALL = 2, 3


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
    own = Limit("order:{order}", 1, cooldown=options.pop("cooldown", None))
    parents = [Shared(key) for key in options.pop("parents", ())]
    key = [own, *parents] if parents else own
    options = {f"lock_{name}": value for name, value in options.items()}
    given = {**options, **task}
    register_payments(app, folder, given, database)
    register_losing(app, folder, given)
    register_charging(app, folder, given)
    if options["lock_ttl"] is not None:  # theirs is of their own
        register_members(app, folder)
    locked = {"base": LockedTask, "shared": False, "lock_key": key, **given}

    @app.task(name="apply", bind=True, **locked)
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

    _register_features(app, folder, locked)
    _register_plain(app, folder, options)
    _register_outcomes(app, folder, locked, task)
    _register_limited(app, folder, locked)


def _register_plain(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    journal = Journal(folder / "journal")

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


def _register_features(app: Celery, folder: Path, locked: Mapping[str, Any]) -> None:
    journal = Journal(folder / "journal")
    alone = {**locked, "lock_key": "{parent}"}

    @app.task(name="collect", **locked)
    def collect(numbers: list[int], order: str) -> int:
        """The locked body of a chord."""
        journal.write("start", order=order, numbers=numbers)
        journal.write("end", order=order, numbers=numbers)
        return sum(numbers)

    @app.task(name="audit", **alone)
    def audit(parent: str, hold: str | None = None) -> None:
        """Has the parent of all orders for itself."""
        journal.write("audit starts")
        if hold:
            hold_at(folder, hold)
        journal.write("audit ends")

    @app.task(name="once", **{**locked, "lock_key": "order:{order}", "lock_unique": "done"})
    def once(order: str, number: int = 0) -> int:
        """While one call of it lives, no other that does the same is published."""
        journal.write("once", order=order, number=number)
        return number

    @app.task(name="index", bind=True, **{**locked, "lock_unique": Debounce(1, 5)})
    def index(self: Any, order: str, number: int = 0) -> int:
        """Is due a second after its last call."""
        journal.write("indexed", order=order, number=number, id=self.request.id)
        return number


def _register_outcomes(
    app: Celery, folder: Path, locked: Mapping[str, Any], plain: Mapping[str, Any]
) -> None:
    journal = Journal(folder / "journal")

    def third_time(self: Any, order: str) -> int:
        """Fails twice and succeeds the third time; its broker is to deliver it again."""
        journal.write("start", order=order, id=self.request.id)
        tries = len(journal.read("start", order=order))
        if tries < 3:
            raise ValueError(tries)
        return tries

    app.task(name="third time", bind=True, **locked)(third_time)
    app.task(name="third time plainly", bind=True, shared=False, **plain)(third_time)

    def happens(self: Any, order: str, hold: str | None = None) -> str:
        journal.write("start", id=self.request.id, order=order)
        if hold:
            hold_at(folder, hold)
        return order

    own = {"base": LockedTask, "bind": True, "shared": False, "lock_key": "order:{order}"}
    for name, policy in HAPPENS.items():
        app.task(name=name, lock_on_contention=policy, **own)(happens)


def _register_limited(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define ``load`` and ``load by plan``; with *hold* they stay in the body until the test says
    go. The limit of the second is the number in the file ``plan-TENANT``.
    """
    if replaces_running(options["lock_on_contention"]):  # which does not go with several keys
        return
    journal = Journal(folder / "journal")
    given = {name: value for name, value in options.items() if name != "lock_reserve"}

    def at_once(tenant: str, *_: Any, **__: Any) -> int:
        return int((folder / f"plan-{tenant}").read_text())

    def load(tenant: str, number: int, hold: str | None = None) -> int:
        journal.write("start", tenant=tenant, number=number)
        if hold:
            hold_at(folder, hold)
        journal.write("end", tenant=tenant, number=number)
        return number

    keys = {
        "load": [Limit("tenant:{tenant}", EACH), Limit("all", ALL)],
        "load by plan": Limit("plan:{tenant}", at_once),
    }
    for name, key in keys.items():
        app.task(name=name, **{**given, "lock_key": key})(load)
