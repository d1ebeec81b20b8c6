"""The fence, on real SQLite files: who may write, who comes too late, what a rollback undoes."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import fencing
from celery_dlock.core.current import holding
from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Claim, Mode
from celery_dlock.errors import ConfigurationError, StaleFencingToken

ORDER = "order:42"
LARGEST = 2**63 - 1

Connect = Callable[..., sqlite3.Connection]


@pytest.fixture
def connect(tmp_path: Path) -> Iterator[Connect]:
    """Open connections to one database that has the tables and an order without a cent."""
    opened: list[sqlite3.Connection] = []

    def connect(**options: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = sqlite3.connect(tmp_path / "shop.db", timeout=0.05, **options)
        opened.append(db)
        return db

    with closing(connect()) as db, db:
        db.execute("PRAGMA journal_mode = WAL")
        fencing.create_table(db)
        db.execute("CREATE TABLE orders (id TEXT PRIMARY KEY, paid INTEGER)")
        db.execute("INSERT INTO orders VALUES (?, 0)", (ORDER,))
    yield connect
    for db in opened:
        db.close()


@pytest.fixture
def db(connect: Connect) -> sqlite3.Connection:
    return connect()


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def term(
    key: str = ORDER,
    token: int = 1,
    nonce: str = "n1",
    mode: Mode = Mode.EXCLUSIVE,
    slot: int = 0,
    clock: Callable[[], float] | None = None,
) -> Term:
    clock = clock or Clock()
    claim = Claim(key, task="t:0:0", nonce=nonce, ttl=30_000_000, mode=mode)
    return Term(claim, slot, 0 if mode is Mode.SHARED else token, clock(), clock)


def lease(*terms: Term) -> Lease:
    return Lease(terms, "strict")


def admit(db: sqlite3.Connection, token: Any, owner: Any = "a", resource: Any = ORDER) -> None:
    fencing.admit(db, resource=resource, fencing_token=token, owner=owner)


def pay(db: sqlite3.Connection, token: int, owner: str = "a", amount: int = 1) -> None:
    with db:
        admit(db, token, owner)
        db.execute("UPDATE orders SET paid = paid + ? WHERE id = ?", (amount, ORDER))


def paid(db: sqlite3.Connection) -> int:
    return int(db.execute("SELECT paid FROM orders").fetchone()[0])


def fence(db: sqlite3.Connection) -> dict[str, tuple[int, str]]:
    rows = db.execute("SELECT resource, token, owner FROM dlock_fence")
    return {resource: (token, owner) for resource, token, owner in rows}


class TestAdmit:
    def test_lets_a_first_writer_pass_and_remembers_it(self, db: sqlite3.Connection) -> None:
        pay(db, 7)
        assert fence(db) == {ORDER: (7, "a")}
        assert paid(db) == 1

    def test_lets_one_holder_write_many_times(self, db: sqlite3.Connection) -> None:
        pay(db, 7)
        pay(db, 7)
        with db:
            admit(db, 7)
            admit(db, 7)
        assert paid(db) == 2

    def test_lets_a_newer_holder_pass(self, db: sqlite3.Connection) -> None:
        pay(db, 7, "a")
        pay(db, 8, "b")
        assert fence(db) == {ORDER: (8, "b")}

    def test_refuses_an_older_token(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "b")
        with pytest.raises(StaleFencingToken) as refused:
            pay(db, 7, "a")
        assert refused.value.args == (ORDER, 7, 8)
        assert paid(db) == 1
        assert fence(db) == {ORDER: (8, "b")}

    def test_refuses_an_older_token_of_the_same_owner(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "a")
        with pytest.raises(StaleFencingToken):
            pay(db, 7, "a")

    def test_refuses_the_same_token_of_another_owner(self, db: sqlite3.Connection) -> None:
        pay(db, 7, "a")
        with pytest.raises(StaleFencingToken) as refused:
            pay(db, 7, "b")
        assert (refused.value.mine, refused.value.seen) == (7, 7)
        assert fence(db) == {ORDER: (7, "a")}

    def test_keeps_resources_apart(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "b")
        with db:
            admit(db, 1, "a", resource="order:43")
        assert fence(db) == {ORDER: (8, "b"), "order:43": (1, "a")}

    def test_compares_as_numbers_up_to_the_largest(self, db: sqlite3.Connection) -> None:
        pay(db, 9, "a")
        pay(db, 10, "b")
        pay(db, LARGEST - 1, "c")
        pay(db, LARGEST, "d")
        with pytest.raises(StaleFencingToken):
            pay(db, LARGEST - 1, "c")
        assert fence(db) == {ORDER: (LARGEST, "d")}

    def test_is_undone_by_a_rollback(self, db: sqlite3.Connection) -> None:
        pay(db, 7, "a")
        admit(db, 9, "c")
        db.rollback()
        assert fence(db) == {ORDER: (7, "a")}
        pay(db, 8, "b")

    def test_reads_the_largest_token_whatever_the_row_factory(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "b")
        db.row_factory = lambda _cursor, row: {"row": row}
        with pytest.raises(StaleFencingToken) as refused:
            pay(db, 7, "a")
        assert refused.value.seen == 8

    @pytest.mark.parametrize("token", [0, -1, 2**63, 10**30, True, 1.0, "1", None])
    def test_refuses_what_is_no_token(self, db: sqlite3.Connection, token: Any) -> None:
        with pytest.raises(ConfigurationError):
            admit(db, token)
        assert fence(db) == {}

    @pytest.mark.parametrize(("owner", "resource"), [("", ORDER), ("a", ""), (b"a", ORDER)])
    def test_refuses_who_has_no_name(
        self, db: sqlite3.Connection, owner: Any, resource: Any
    ) -> None:
        with pytest.raises(ConfigurationError):
            admit(db, 1, owner, resource)

    def test_refuses_a_lease_together_with_a_token(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="a lease, or all of"):
            fencing.admit(db, lease(term()), fencing_token=1)  # type: ignore[call-overload]


class TestTwoWriters:
    def test_a_paused_holder_is_refused_when_it_wakes_up(self, connect: Connect) -> None:
        # Given a holder that was paused past its lease
        clock = Clock()
        paused = lease(term(token=33, nonce="paused", clock=clock))
        clock.now += 3600
        assert paused.lost
        # And a successor that has written
        successor = lease(term(token=34, nonce="successor"))
        with connect() as db:
            fencing.admit(db, successor)
            db.execute("UPDATE orders SET paid = 100")
        # When the first one goes on with its write
        late = connect()
        late.execute("UPDATE orders SET paid = 0")
        with pytest.raises(StaleFencingToken) as refused, late:
            fencing.admit(late, paused)
        # Then nothing of it is there
        assert (refused.value.mine, refused.value.seen) == (33, 34)
        assert paid(late) == 100

    def test_a_lost_lease_passes_while_nobody_newer_has_written(self, connect: Connect) -> None:
        clock = Clock()
        paused = lease(term(token=33, clock=clock))
        clock.now += 3600
        with connect() as db:
            fencing.admit(db, paused)
        assert fence(db) == {ORDER: (33, "t:0:0|n1")}

    def test_the_older_one_is_refused_although_it_came_first(self, connect: Connect) -> None:
        # Given both have begun, and the older one is first to ask and then rolls back
        older, newer = connect(), connect()
        admit(older, 7, "a")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            admit(newer, 8, "b")  # its transaction waits for the older one's to end
        older.rollback()
        # When the newer one commits in between
        pay(newer, 8, "b")
        # Then the older one comes too late
        with pytest.raises(StaleFencingToken):
            pay(older, 7, "a")
        assert paid(older) == 1

    def test_no_write_fits_between_the_check_and_the_commit(self, connect: Connect) -> None:
        older, newer = connect(), connect()
        admit(older, 7, "a")
        older.execute("UPDATE orders SET paid = paid + 1")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            pay(newer, 8, "b", amount=10)
        older.commit()
        pay(newer, 8, "b", amount=10)
        assert paid(newer) == 11


class TestTheLease:
    def test_the_current_one_is_the_default(self, db: sqlite3.Connection) -> None:
        with holding(lease(term(token=5))), db:
            fencing.admit(db)
        assert fence(db) == {ORDER: (5, "t:0:0|n1")}

    def test_outside_a_lock_there_is_none(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="no lock is held"):
            fencing.admit(db)

    def test_shows_every_key_and_passes_with_all_or_none(self, db: sqlite3.Connection) -> None:
        # Given somebody newer has written to the second of two keys
        with db:
            admit(db, 9, "b", resource="stock:2")
        both = lease(term("order:1", 5), term("stock:2", 6))
        # When a holder of both shows its lease
        with pytest.raises(StaleFencingToken) as refused, db:
            fencing.admit(db, both)
        # Then the first is not raised either
        assert refused.value.resource == "stock:2"
        assert fence(db) == {"stock:2": (9, "b")}

    def test_fences_each_slot_for_itself(self, db: sqlite3.Connection) -> None:
        with db:
            fencing.admit(db, lease(term(token=9, slot=0)))
            fencing.admit(db, lease(term(token=8, slot=1)))
        assert {name: token for name, (token, _) in fence(db).items()} == {
            ORDER: 9,
            f"{ORDER}#1": 8,
        }

    def test_of_a_reader_is_refused(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="read lock"):
            fencing.admit(db, lease(term(mode=Mode.SHARED)))

    def test_leaves_read_locks_out_beside_exclusive_ones(self, db: sqlite3.Connection) -> None:
        with db:
            fencing.admit(db, lease(term("catalogue", mode=Mode.SHARED), term("order:1", 5)))
        assert set(fence(db)) == {"order:1"}


class TestOnce:
    def test_is_true_the_first_time_only(self, connect: Connect) -> None:
        with connect() as db:
            assert fencing.once(db, "event-1") is True
            assert fencing.once(db, "event-1") is False
        with connect() as other:
            assert fencing.once(other, "event-1") is False
            assert fencing.once(other, "event-2") is True

    def test_is_undone_by_a_rollback(self, db: sqlite3.Connection) -> None:
        assert fencing.once(db, "event-1")
        db.rollback()
        assert fencing.once(db, "event-1")

    def test_a_redelivery_passes_the_fence_and_finds_the_effect_done(
        self, db: sqlite3.Connection
    ) -> None:
        for token in (7, 8):
            with db:
                admit(db, token, f"delivery {token}")
                if fencing.once(db, "event-1"):
                    db.execute("UPDATE orders SET paid = paid + 1")
        assert paid(db) == 1

    def test_a_refused_writer_claims_nothing(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "b")
        assert fencing.once(db, "event-1")
        with pytest.raises(StaleFencingToken), db:
            admit(db, 7, "a")
        assert fencing.once(db, "event-1")

    @pytest.mark.parametrize("effect", ["", None, 7])
    def test_refuses_an_effect_without_a_name(self, db: sqlite3.Connection, effect: Any) -> None:
        with pytest.raises(ConfigurationError, match="effect_id"):
            fencing.once(db, effect)


class Autocommitting(sqlite3.Connection):
    """What a connection of Python 3.12 and later says of itself."""

    autocommit = True


def ask_the_fence(db: Any) -> None:
    admit(db, 1)


def ask_once(db: Any) -> None:
    fencing.once(db, "event-1")


@pytest.mark.parametrize("ask", [ask_the_fence, ask_once])
class TestOutsideATransaction:
    def test_autocommit_is_refused(self, connect: Connect, ask: Callable[[Any], None]) -> None:
        db = connect(isolation_level=None)
        with pytest.raises(ConfigurationError, match="BEGIN"):
            ask(db)
        assert fence(db) == {}
        assert not db.in_transaction

    def test_an_explicit_begin_will_do(self, connect: Connect, ask: Callable[[Any], None]) -> None:
        db = connect(isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        ask(db)
        db.execute("ROLLBACK")
        assert fence(db) == {}

    def test_the_implicit_transaction_will_do(
        self, db: sqlite3.Connection, ask: Callable[[Any], None]
    ) -> None:
        assert not db.in_transaction
        ask(db)
        assert db.in_transaction

    def test_autocommit_under_its_newer_name_is_refused(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        with pytest.raises(ConfigurationError, match="BEGIN"):
            ask(connect(factory=Autocommitting))

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= since 3.12")
    def test_autocommit_of_python_3_12_is_refused(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        with pytest.raises(ConfigurationError, match="BEGIN"):
            ask(connect(autocommit=True))
        ask(connect(autocommit=False))


@pytest.mark.parametrize("ask", [ask_the_fence, ask_once])
class TestTheTables:
    def test_when_missing_the_error_says_how_to_make_them(
        self, tmp_path: Path, ask: Callable[[Any], None]
    ) -> None:
        with closing(sqlite3.connect(tmp_path / "empty.db")) as db:
            with pytest.raises(ConfigurationError) as missing:
                ask(db)
            assert "fencing.create_table(connection)" in str(missing.value)
            assert "CREATE TABLE IF NOT EXISTS dlock_fence" in str(missing.value)
            assert "CREATE TABLE IF NOT EXISTS dlock_once" in str(missing.value)

    def test_are_made_once_and_keep_what_they_hold(
        self, db: sqlite3.Connection, ask: Callable[[Any], None]
    ) -> None:
        with db:
            ask(db)
        before = list(db.iterdump())
        fencing.create_table(db)
        assert list(db.iterdump()) == before

    def test_other_errors_of_the_database_pass_through(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        other = connect()
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ask(connect())

    def test_an_unknown_kind_of_connection_is_refused(self, ask: Callable[[Any], None]) -> None:
        with pytest.raises(ConfigurationError, match=r"builtins\.object"):
            ask(object())
