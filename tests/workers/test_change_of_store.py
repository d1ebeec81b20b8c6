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
from celery_dlock.core.lease import EPOCH_SHIFT
from celery_dlock.runtime import forget, runtime
from tests.services.brokers import close
from tests.services.desk import Desk
from tests.services.effects import Effects
from tests.services.stores import STORES, Store
from tests.services.until import until
from tests.workers.conftest import on_store

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


@pytest.mark.slow
@pytest.mark.server("redis")
def test_a_late_writer_of_the_old_store_is_refused_and_its_task_runs_again(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lab = on_store(request, tmp_path, NAMED["redis"], "queue")
    pay, effects = lab.app.tasks["pay"], Effects(tmp_path)
    effects.create()
    to = NAMED["sqlite"].settings(request, tmp_path)
    moved = {**lab.config["celery"], **to, "dlock_fencing_epoch": 1}
    # Given a body that has not come to its write when the stores are changed
    with lab.worker("threads") as old:
        late = pay.delay("42", 0, hold="late")
        (held,) = lab.journal.wait_for("start")
        old.send(signal.SIGTERM)  # it takes no more, and ends when its body has
        # And one of the same key that the new store knows nothing of
        with lab.worker("threads", celery=moved) as new:
            other = pay.delay("42", 1)
            assert other.get(timeout=60) == 1
            assert [effect for effect, _, _ in effects.payments()] == [other.id]

            # When it goes on, Then its write is refused, and its message comes to the new store
            lab.go("late")
            assert late.get(timeout=60) == 0
            new.stop()
        old.ended()
        assert "was refused a late write" in old.log
    payments = effects.payments()
    again = lab.journal.read("start", id=late.id)
    assert [entry["token"] for entry in again] == [held["token"], payments[-1][2]]
    assert [effect for effect, _, _ in payments] == [other.id, late.id]
    close(lab.app)


@pytest.mark.slow
@pytest.mark.server("redis")
@pytest.mark.server("postgresql")
def test_what_waits_on_redis_is_drained_and_the_order_goes_on_on_postgresql(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    lab = on_store(request, tmp_path, NAMED["redis"], "queue as published")
    Effects(tmp_path).create()
    to = NAMED["postgresql"].settings(request, tmp_path)
    # Given five that wait in Redis for one that runs
    with lab.worker("threads", 4) as old:
        first = lab.app.tasks["pay"].delay("42", 0, hold="first")
        lab.journal.wait_for("start")
        waiting = [lab.app.tasks["pay"].delay("42", number) for number in range(1, 6)]
        assert runtime(lab.app).backend.peek("order:42").parked == 6  # and the one that runs

        # When the workers run until nothing waits, and stop
        lab.go("first")
        for result in [first, *waiting]:
            result.get(timeout=60)
        until("the old store is empty", lambda: not runtime(lab.app).backend.keys().keys)
        old.stop()
    forget(lab.app)

    # Then the others take their turns in the new store, with larger tokens
    lab.app.conf.update(to, dlock_fencing_epoch=1)
    with lab.worker("threads", 4, celery={**lab.config["celery"], **to, "dlock_fencing_epoch": 1}):
        later = [lab.app.tasks["pay"].delay("42", number) for number in range(6, 9)]
        for result in later:
            result.get(timeout=60)
    runs = lab.journal.read("start")
    assert [run["id"] for run in runs] == [each.id for each in (first, *waiting, *later)]
    tokens = [run["token"] for run in runs]
    assert tokens == sorted(set(tokens))
    assert tokens[5] < 1 << EPOCH_SHIFT <= tokens[6]
    close(lab.app)
