"""Tasks of the fault tests: they pay behind the fence, outlive their lease, or fork."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from celery import Celery, signals

from celery_dlock import LockedTask, lock
from tests.services.effects import Effects
from tests.services.lab import Journal, hold_at
from tests.services.stubborn import register_stubborn
from tests.services.until import until

if TYPE_CHECKING:
    from tests.services.effects_on_server import EffectsOnServer


def register_payments(
    app: Celery, folder: Path, options: Mapping[str, Any], database: str | None = None
) -> None:
    """Define the tasks on *app*, all on the key of their order; *options* are Celery's own.

    They pay in the *database* of that URL, or in a file in *folder*.
    """
    journal = Journal(folder / "journal")
    effects = effects_in(database) if database else Effects(folder)

    class Watched(LockedTask):
        """Notes that its lock is lost."""

        abstract = True

        def on_lock_lost(
            self, lease: Any, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
        ) -> None:
            reasons = [term.lost for term in lease.terms]
            journal.write("lost", id=task_id, token=lease.fencing_token, reasons=reasons)

    options = {"base": Watched, "shared": False, "lock_key": "order:{order}", **options}

    @app.task(name="pay", bind=True, **options)
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
        new = effects.pay(lease, self.request.id)
        journal.write("paid", new=new, **about)
        if after:
            hold_at(folder, after)
        journal.write("end", lost=lease.lost, **about)
        return number

    @app.task(name="outlive", **options)
    def outlive(order: str, *, lease: Any) -> bool:
        """Stays in the body until its lease is lost, and notes how soon it knew."""
        journal.write("start", order=order)
        until("the lease is lost", lambda: lease.lost)
        journal.write("noticed", order=order)
        return True

    @app.task(name="careful", bind=True, **options)
    def careful(self: Any, order: str, *, lease: Any) -> None:
        """Waits until the test says go or its lease is lost, and pays only in the first case."""
        journal.write("start", token=lease.fencing_token)
        until("go or lost", lambda: lease.lost or (folder / "go-careful").exists())
        lease.check()
        effects.pay(lease, self.request.id)

    _register_forking(app, folder, options)
    register_stubborn(app, folder, options)


def effects_in(database: str) -> EffectsOnServer:
    from tests.services.effects_on_server import EffectsOnServer  # few workers need SQLAlchemy

    return EffectsOnServer(database)


def _register_forking(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    journal = Journal(folder / "journal")

    @app.task(name="forking", bind=True, **options)
    def forking(self: Any, order: str, how: str, *, lease: Any) -> str:
        """Forks in the body; the child ends in its own way, the parent waits for the test."""
        pid = os.fork()
        if pid == 0:
            try:
                if how == "as the tracer":
                    about = {"task_id": self.request.id, "args": (order, how), "kwargs": {}}
                    signals.task_postrun.send(self, task=self, state="SUCCESS", **about)
                elif how == "lock()":
                    with lock("other", app=app):
                        journal.write("locked")
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        journal.write("forked", order=order)
        hold_at(folder, "forked")
        return "parent"
