"""The late holder that tests of other projects are given: what it believes, what refuses it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, Task
from sqlalchemy import create_engine, text
from sqlalchemy.orm import Session

from celery_dlock import (
    ConfigurationError,
    Limit,
    LockContended,
    LockedTask,
    LockLost,
    Shared,
    StaleFencingToken,
    current_lease,
    fencing,
    idempotency_key,
    lock,
    locked_task,
)
from celery_dlock.core.lease import unsleeping
from celery_dlock.core.state import Claim, Mode, Run
from celery_dlock.runtime import runtime
from celery_dlock.testing import stale_holder
from tests.services.until import until

pytestmark = pytest.mark.usefixtures("clock")


@pytest.fixture
def db(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(tmp_path / "shop.db")) as db:
        with db:
            fencing.create_table(db)
            db.execute("CREATE TABLE paid (amount INTEGER)")
        yield db


def paid(db: sqlite3.Connection) -> list[int]:
    return [amount for (amount,) in db.execute("SELECT amount FROM paid ORDER BY rowid")]


def write(db: sqlite3.Connection, amount: int, *, fenced: bool = True) -> str:
    with db:
        if fenced:
            fencing.admit(db)
        db.execute("INSERT INTO paid VALUES (?)", (amount,))
    return "paid"


def paying(
    app: Celery, body: Callable[[int], object] = str, key: Any = "order:{order}", **options: Any
) -> Any:
    """A task that pays some amount for an order."""

    @locked_task(key, app=app, name="pay", **options)
    def pay(order: int, amount: int = 10) -> object:
        return body(amount)

    return pay


def refusal_of(late: Any) -> StaleFencingToken:
    refusal = late.wakes_up()
    assert isinstance(refusal, StaleFencingToken)
    return refusal


def somebody_holds(app: Celery, key: str, limit: int = 1) -> None:
    """Somebody who is not the running code: for that a key is re-entrant."""
    mode = Mode.LIMITED if limit > 1 else Mode.EXCLUSIVE
    claim = Claim(key, "somebody:0:0", "n", ttl=30_000_000, mode=mode, limit=limit)
    assert isinstance(runtime(app).backend.enter(claim).verdict, Run)


def test_a_fenced_bodys_write_is_not_there(app: Celery, db: sqlite3.Connection) -> None:
    pay = paying(app, lambda amount: write(db, amount))
    late = stale_holder(pay, 42, 10)
    pay(42, 20)

    refusal = refusal_of(late)

    assert (refusal.resource, refusal.mine) == ("order:42", late.lease.fencing_token)
    assert paid(db) == [20]


@pytest.mark.parametrize("fenced", [True, False])
def test_a_body_on_sqlalchemy_is_told_apart_too(app: Celery, tmp_path: Path, fenced: bool) -> None:
    engine = create_engine(f"sqlite:///{tmp_path / 'shop.db'}")
    with Session(engine) as session, session.begin():
        fencing.create_table(session)
        session.execute(text("CREATE TABLE paid (amount INTEGER)"))

    def insert(amount: int) -> None:
        with Session(engine) as session, session.begin():
            if fenced:
                fencing.admit(session)
            session.execute(text("INSERT INTO paid VALUES (:amount)"), {"amount": amount})

    pay = paying(app, insert)
    late = stale_holder(pay, 42, 10)
    pay(42, 20)
    if fenced:
        late.wakes_up()
    else:
        with pytest.raises(AssertionError, match="nothing refused it"):
            late.wakes_up()
    with Session(engine) as session:
        amounts = session.execute(text("SELECT amount FROM paid")).scalars().all()
    assert amounts == ([20] if fenced else [20, 10])
    engine.dispose()


def test_a_body_without_a_fence_fails_the_test_and_the_message_says_what_to_do(
    app: Celery, db: sqlite3.Connection
) -> None:
    pay = paying(app, lambda amount: write(db, amount, fenced=False))
    late = stale_holder(pay, 42, 10)
    pay(42, 20)

    with pytest.raises(AssertionError, match=r"nothing refused it.*'order:42'.*'paid'.*admit\("):
        late.wakes_up()

    assert paid(db) == [20, 10]


@pytest.mark.parametrize("look", ["check", "extend", "remaining"])
def test_a_look_at_the_lease_is_no_fence(app: Celery, db: sqlite3.Connection, look: str) -> None:
    def looks_and_writes(amount: int) -> None:
        lease = current_lease()
        if look == "check":
            lease.check()
        elif look == "extend":
            lease.extend(5)
        if not lease.lost and lease.remaining():
            write(db, amount, fenced=False)

    late = stale_holder(paying(app, looks_and_writes, ttl=1), 42)
    over = unsleeping() + 1
    with lock("order:42", app=app):
        pass
    until("its lease has ended", lambda: unsleeping() > over)

    with pytest.raises(AssertionError, match="nothing refused it"):
        late.wakes_up()


def test_the_lock_is_free_and_the_late_one_believes_that_it_is_not(app: Celery) -> None:
    late = stale_holder(paying(app), 42)

    assert not runtime(app).backend.peek("order:42").holders
    assert not late.lease.lost
    with lock("order:42", app=app, timeout=0) as theirs:
        assert theirs.fencing_token > late.lease.fencing_token
        assert theirs.owner != late.lease.owner


def test_the_body_is_given_what_a_worker_gives_it(app: Celery, db: sqlite3.Connection) -> None:
    class OfTheProject(Task):  # type: ignore[misc]
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            seen.append("called")
            return self.run(*args, **kwargs)

    class Base(LockedTask, OfTheProject):
        abstract = True

    seen: list[Any] = []

    @app.task(base=Base, bind=True, lock_key="order:{order}")
    def pay(self: Any, order: int, amount: int = 1, *, fencing_token: int, lease: Any) -> None:
        seen.extend([fencing_token, lease, self.lease, current_lease(), bool(self.request.id)])
        assert idempotency_key("charge")
        with lock("order:42", app=app, timeout=0) as within:  # re-entrant
            assert within.fencing_token == fencing_token
        write(db, amount)

    late = stale_holder(pay, 42, amount=10)
    token = late.lease.fencing_token
    with lock("order:42", app=app), db:
        fencing.admit(db)

    refusal_of(late)

    assert seen == ["called", token, late.lease, late.lease, late.lease, True]
    assert pay.request.id is None


def test_one_key_of_several_that_was_taken_is_enough(app: Celery, db: sqlite3.Connection) -> None:
    @locked_task(["from:{a}", "to:{b}", Shared("accounts")], app=app)
    def transfer(a: int, b: int) -> None:
        write(db, 1)

    late = stale_holder(transfer, 1, 2)
    assert late.lease.keys == ("from:1", "to:2")
    transfer(3, 2)

    assert refusal_of(late).resource == "to:2"


def test_the_next_of_the_same_slot_refuses_it(app: Celery, db: sqlite3.Connection) -> None:
    pay = paying(app, lambda amount: write(db, amount), Limit("order:{order}", 2))
    somebody_holds(app, "order:42", limit=2)
    late = stale_holder(pay, 42, 10)
    pay(42, 20)

    assert refusal_of(late).resource == "order:42#1"
    assert paid(db) == [20]


def test_who_wakes_up_first_is_not_late(app: Celery, db: sqlite3.Connection) -> None:
    late = stale_holder(paying(app, lambda amount: write(db, amount)), 42)

    with pytest.raises(AssertionError, match=r"nobody has written with a newer token"):
        late.wakes_up()


def test_an_error_of_the_body_is_no_refusal(app: Celery) -> None:
    def fails(amount: int) -> None:
        raise KeyError(amount) if amount else LockLost("order:42")

    pay = paying(app, fails)

    with pytest.raises(KeyError):
        stale_holder(pay, 42, 1).wakes_up()
    assert isinstance(stale_holder(pay, 42, 0).wakes_up(), LockLost)


def test_what_cannot_come_too_late_is_refused_at_once(app: Celery) -> None:
    @app.task
    def plain() -> None: ...

    @locked_task("order:{order}", app=app)
    def pay(order: int, *, fencing_token: int) -> None: ...

    with pytest.raises(ConfigurationError, match="read lock"):
        stale_holder(paying(app, key=Shared("order:{order}")), 42)
    with pytest.raises(ConfigurationError, match="no locked task"):
        stale_holder(plain)
    with pytest.raises(TypeError, match="must not pass it"):
        stale_holder(pay, 42, fencing_token=1)
    with pytest.raises(TypeError, match="order"):
        stale_holder(pay)
    assert not runtime(app).backend.peek("order:42").holders


def test_a_lock_that_somebody_holds_cannot_be_taken_before(app: Celery) -> None:
    somebody_holds(app, "order:42")

    with pytest.raises(LockContended):
        stale_holder(paying(app), 42)
