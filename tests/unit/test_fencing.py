"""The fence on SQLite files: what is shown to it, what it refuses before it asks, what it costs.

What it promises on every database is in ``tests/fencing``.
"""

from __future__ import annotations

import sqlite3
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from celery_dlock import fencing
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.locks.current import holding
from tests.fencing.leases import lease, term
from tests.unit.shop_database import ORDER, Connect, admit, connect, db, fence, paid, pay

__all__ = ["connect", "db"]

READS = term("catalogue", mode=Mode.SHARED)


class Clock:
    now = 1000.0

    def __call__(self) -> float:
        return self.now


def refused(call: Callable[[], object], why: str | None = None) -> None:
    with pytest.raises(ConfigurationError, match=why):
        call()


class TestAdmit:
    @pytest.mark.parametrize("plain", [True, False], ids=["rows", "a row factory"])
    def test_refuses_the_same_token_of_another_owner(
        self, db: sqlite3.Connection, plain: bool
    ) -> None:
        pay(db, 7, "a")
        if not plain:
            db.row_factory = lambda _cursor, row: {"row": row}
        with pytest.raises(StaleFencingToken) as caught:
            pay(db, 7, "b")
        assert (caught.value.mine, caught.value.seen) == (7, 7)
        db.row_factory = None
        assert fence(db) == {ORDER: (7, "a")}

    def test_a_lost_lease_passes_while_nobody_newer_has_written(self, connect: Connect) -> None:
        clock = Clock()
        paused = lease(term(token=33, clock=clock))
        clock.now += 3600
        with connect() as db:
            fencing.admit(db, paused)
        assert fence(db) == {ORDER: (33, "t:0:0|n1")}

    def test_shows_the_current_lease_where_none_is_given(self, db: sqlite3.Connection) -> None:
        refused(lambda: fencing.admit(db), "no lock is held")
        with holding(lease(term(token=5))), db:
            fencing.admit(db)
        assert fence(db) == {ORDER: (5, "t:0:0|n1")}

    def test_read_locks_are_left_out_or_refused(self, db: sqlite3.Connection) -> None:
        with db:
            fencing.admit(db, lease(READS, term("order:1", 5)))
        assert set(fence(db)) == {"order:1"}
        refused(lambda: fencing.admit(db, lease(READS)), "read lock")


class TestOnce:
    def test_is_of_one_key(self, db: sqlite3.Connection) -> None:
        """Events that are numbered by order have the same numbers in each."""
        with db:
            assert fencing.once(db, "e0", lease(term("order:1")))
            assert fencing.once(db, "e0", lease(term("order:2")))
            assert not fencing.once(db, "e0", lease(term("order:1", slot=2)))
            with holding(lease(term("order:2"), READS)):
                assert not fencing.once(db, "e0")
            assert fencing.once(db, "e0", lease(READS))

    def test_of_several_keys_or_none_has_to_name_one(self, db: sqlite3.Connection) -> None:
        both = lease(term("order:1"), term("stock:9"))
        with db:
            refused(lambda: fencing.once(db, "e0"))
            refused(lambda: fencing.once(db, "e0", both), r"several keys.*resource='order:1'")
            assert fencing.once(db, "e0", both, resource="order:1")
            assert not fencing.once(db, "e0", lease(term("order:1")))

    def test_a_redelivery_passes_the_fence_and_finds_the_effect_done(
        self, db: sqlite3.Connection
    ) -> None:
        for token in (7, 8):
            with db:
                admit(db, token, f"delivery {token}")
                if fencing.once(db, "event-1", resource="shop"):
                    db.execute("UPDATE orders SET paid = paid + 1")
        assert paid(db) == 1


class TestMint:
    def test_who_loses_the_lock_as_it_counts_is_given_none(self, db: sqlite3.Connection) -> None:
        held = lease(term())
        db.execute("BEGIN")
        db.set_trace_callback(lambda statement: held.terms[0].lose("its lease has ended"))
        with pytest.raises(LockLost, match="has ended"):
            fencing.mint(db, "stock", held)

    def test_gives_nothing_without_a_lease_that_writes(self, db: sqlite3.Connection) -> None:
        refused(lambda: fencing.mint(db, "stock"), "no lock is held")
        refused(lambda: fencing.mint(db, "stock", lease(READS)), "read lock")

    def test_a_name_that_the_lock_has_tokens_for_is_refused(self, db: sqlite3.Connection) -> None:
        for resource, slot in ((ORDER, 0), (f"{ORDER}#1", 1)):
            held = lease(term(slot=slot))
            with pytest.raises(ConfigurationError, match=f"'minted:{resource}'"):
                fencing.mint(db, resource, held)

    def test_there_is_none_after_the_largest(self, db: sqlite3.Connection) -> None:
        with db:
            admit(db, 2**63 - 1, resource="stock")
        with pytest.raises(ConfigurationError, match="fencing token"), db:
            fencing.mint(db, "stock", lease(term()))
        assert fence(db) == {"stock": (2**63 - 1, "a")}


class TestBadInput:
    @pytest.mark.parametrize("token", [0, -1, 2**63, 10**30, True, 1.0, "1", None])
    def test_refuses_what_is_no_token(self, db: sqlite3.Connection, token: Any) -> None:
        refused(lambda: admit(db, token))
        assert fence(db) == {}

    @pytest.mark.parametrize(
        "name", ["", None, 7, b"order:42", "x" * 1025, "ü" * 513, "order\0", "order:\udcff"]
    )
    def test_refuses_what_is_no_name(self, db: sqlite3.Connection, name: Any) -> None:
        refused(lambda: admit(db, 1, resource=name), "resource")
        refused(lambda: admit(db, 1, owner=name))
        refused(lambda: fencing.mint(db, name, lease(term())), "resource")
        refused(lambda: fencing.once(db, name, resource="shop"), "effect_id")

    def test_refuses_a_lease_together_with_a_token(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="a lease, or all of"):
            fencing.admit(db, lease(term()), fencing_token=1)  # type: ignore[call-overload]


class Autocommitting(sqlite3.Connection):
    """What a connection of Python 3.12 and later says of itself."""

    autocommit = True


def ask_the_fence(db: Any) -> None:
    admit(db, 1)


def ask_once(db: Any) -> None:
    fencing.once(db, "event-1", resource="shop")


@pytest.mark.parametrize("ask", [ask_the_fence, ask_once])
class TestTheConnection:
    def test_an_explicit_begin_will_do(self, connect: Connect, ask: Callable[[Any], None]) -> None:
        db = connect(isolation_level=None)
        db.execute("BEGIN IMMEDIATE")
        ask(db)
        db.execute("ROLLBACK")
        assert fence(db) == {}

    def test_autocommit_under_its_newer_name_is_refused(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        refused(lambda: ask(connect(factory=Autocommitting)), "BEGIN")

    @pytest.mark.skipif(sys.version_info < (3, 12), reason="sqlite3 has autocommit= since 3.12")
    def test_autocommit_of_python_3_12_is_refused(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        refused(lambda: ask(connect(autocommit=True)), "BEGIN")
        ask(connect(autocommit=False))

    def test_other_errors_of_the_database_pass_through(
        self, connect: Connect, ask: Callable[[Any], None]
    ) -> None:
        connect().execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            ask(connect())

    def test_an_unknown_kind_of_connection_is_refused(self, ask: Callable[[Any], None]) -> None:
        refused(lambda: ask(object()), r"builtins\.object")


def test_each_is_one_statement(db: sqlite3.Connection) -> None:
    statements: list[str] = []
    db.execute("BEGIN")
    db.set_trace_callback(statements.append)
    admit(db, 1)
    assert len(statements) == 1
    with pytest.raises(StaleFencingToken):
        admit(db, 1, "b")
    assert len(statements) == 2
    fencing.once(db, "event-1", resource="shop")
    fencing.mint(db, "stock", lease(term()))
    assert len(statements) == 4


def test_no_library_is_imported_before_it_is_used() -> None:
    ask = (
        "import sys, celery_dlock; before = set(sys.modules); import celery_dlock.fencing; "
        "print({'django', 'psycopg', 'pymysql', 'redis', 'sqlalchemy'} "
        "& {name.split('.')[0] for name in sys.modules.keys() - before})"
    )
    assert subprocess.check_output([sys.executable, "-c", ask], text=True) == "set()\n"
