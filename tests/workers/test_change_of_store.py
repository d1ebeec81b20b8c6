"""A key goes from one store to another: the procedure of ``docs/how-to/change-the-store``."""

from __future__ import annotations

import signal
import sqlite3
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import Lease, StaleFencingToken, fencing, lock
from celery_dlock.locks.manager import EPOCH_SHIFT
from celery_dlock.runtime import Runtime, forget, runtime
from tests.services.brokers import close, kept_in_sqlite, over_folder
from tests.services.desk import Desk
from tests.services.effects import Effects
from tests.services.lab import Lab
from tests.services.stores import STORES, Store
from tests.services.until import until

pytestmark = pytest.mark.once

NAMED = {store.scheme: store for store in STORES}


def pair(old: Store, new: Store) -> Any:
    servers = {store.server for store in (old, new)} - {None}
    marks = [pytest.mark.server(server) for server in sorted(servers, key=str)]
    return pytest.param(old, new, marks=marks, id=f"{old.scheme} to {new.scheme}")


#: Each is the old one once, and the new one once.
PAIRS = [pair(*stores) for stores in pairwise([s for s in [*STORES, *STORES[:2]] if s.shared])]


@pytest.fixture
def fence() -> Iterator[Callable[[Lease], None]]:
    """Shows a lease to a table that remembers what it has seen."""

    def show(lease: Lease) -> None:
        with database:
            database.execute("BEGIN")
            fencing.admit(database, lease)

    database = sqlite3.connect(":memory:", isolation_level=None)
    fencing.create_table(database)
    yield show
    database.close()


@pytest.mark.parametrize(("old", "new"), PAIRS)
def test_with_the_epoch_lifted_tokens_of_any_store_pass_after_those_of_any_other(
    desk: Desk,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    fence: Callable[[Lease], None],
    old: Store,
    new: Store,
) -> None:
    def use(settings: dict[str, Any], epoch: int) -> Lease:
        forget(desk.app)
        desk.app.conf.update(settings, dlock_fencing_epoch=epoch)
        with lock("order:42", app=desk.app, timeout=0) as lease:
            return lease

    before, after = (store.settings(request, tmp_path) for store in (old, new))
    late = use(before, 0)
    fence(use(before, 0))
    lifted = use(after, 1)
    fence(lifted)

    assert late.fencing_token < 1 << EPOCH_SHIFT <= lifted.fencing_token
    for refused in (late, use(before, 0), use(after, 0)):
        with pytest.raises(StaleFencingToken):
            fence(refused)
    fence(use(after, 1))
    forget(desk.app)


class Move:
    """A lab whose workers are told which store to use, in front of one resource."""

    def __init__(self, lab: Lab, stores: tuple[dict[str, Any], dict[str, Any]]) -> None:
        self.lab = lab
        self.effects = Effects(lab.folder)
        self.effects.create()
        self.old, self.new = stores

    def worker(self, store: dict[str, Any], epoch: int = 0) -> Any:
        settings = {**self.lab.config["celery"], **store, "dlock_fencing_epoch": epoch}
        return self.lab.worker("threads", concurrency=2, celery=settings)

    def use(self, store: dict[str, Any]) -> Runtime:
        """What this process has of *store*."""
        forget(self.lab.app)
        self.lab.app.conf.update(store)
        return runtime(self.lab.app)

    def pay(self, number: int, **options: Any) -> Any:
        return self.lab.app.tasks["pay"].delay("42", number, **options)

    def paid(self) -> list[str]:
        return [effect for effect, _, _ in self.effects.payments()]

    def tokens(self) -> list[int]:
        return [token for _, _, token in self.effects.payments()]

    def nothing_waits(self) -> bool:
        """As the page says it is found out."""
        here = runtime(self.lab.app)
        swept = here.backend.sweep()
        here.wake(swept.wakes)
        return swept.next_in is None


@pytest.fixture
def move(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Move]:
    old, new = (NAMED[name].settings(request, tmp_path) for name in ("redis", "sqlite"))
    settings = {**over_folder(tmp_path), **kept_in_sqlite(tmp_path), **old}
    task = {"acks_late": True}
    lock = {"policy": "queue", "ttl": None}
    lab = Lab(tmp_path, {"celery": settings, "task": task, "lock": lock})
    yield Move(lab, (old, new))
    close(lab.app)


@pytest.mark.slow
@pytest.mark.server("redis")
def test_workers_drained_on_one_store_go_on_with_another(move: Move) -> None:
    # Given some that wait in the old store
    with move.worker(move.old) as worker:
        sent = [move.pay(0, hold="first")]
        move.lab.journal.wait_for("start")
        sent += [move.pay(number) for number in (1, 2, 3)]
        until("they wait", lambda: runtime(move.lab.app).backend.peek("order:42").parked == 3)
        # When nobody publishes any more, and it is waited until nothing waits
        assert not move.nothing_waits()
        move.lab.go("first")
        until("nothing waits", move.nothing_waits)
        worker.stop()
    drained = len(move.paid())
    sent += [move.pay(number) for number in (4, 5)]

    # Then the workers of the new store do all that is left, once, with larger tokens
    with move.worker(move.new, epoch=1) as worker:
        assert [result.get(timeout=60) for result in sent] == list(range(6))
        worker.stop()
    assert drained == 4
    assert move.paid()[:4] == [result.id for result in sent[:4]]
    assert sorted(move.paid()[4:]) == sorted(result.id for result in sent[4:])  # two threads
    assert move.tokens() == sorted(set(move.tokens()))


@pytest.mark.slow
@pytest.mark.server("redis")
def test_a_late_writer_of_the_old_store_is_refused_and_its_task_runs_again(move: Move) -> None:
    # Given a body that has not come to its write when the stores are changed
    with move.worker(move.old) as old:
        late = move.pay(0, hold="late")
        (held,) = move.lab.journal.wait_for("start")
        old.send(signal.SIGTERM)  # it takes no more, and ends when its body has
        # And one of the same key that the new store knows nothing of
        with move.worker(move.new, epoch=1) as new:
            other = move.pay(1)
            assert other.get(timeout=60) == 1
            assert move.paid() == [other.id]

            # When it goes on, Then its write is refused, and its message comes to the new store
            move.lab.go("late")
            assert late.get(timeout=60) == 0
            new.stop()
        old.process.wait(60)
        assert "was refused a late write" in old.log
    again = move.lab.journal.read("start", id=late.id)
    assert [entry["token"] for entry in again] == [held["token"], max(move.tokens())]
    assert move.paid() == [other.id, late.id]
