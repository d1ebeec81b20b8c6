"""What the fence refuses before it asks the database, and what it says of a missing table."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from celery_dlock import fencing
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError
from tests.fencing.leases import lease, term
from tests.unit.shop_database import ORDER, Connect, admit, connect, db, fence

__all__ = ["connect", "db"]


class TestBadInput:
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


@pytest.mark.parametrize(
    "name", ["", None, 7, b"order:42", "x" * 1025, "ü" * 513, "order\0", "order:\udcff"]
)
class TestNames:
    def test_of_a_resource(self, db: sqlite3.Connection, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="resource"):
            admit(db, 1, resource=name)
        with pytest.raises(ConfigurationError, match="resource"):
            fencing.mint(db, name, lease(term()))

    def test_of_an_owner(self, db: sqlite3.Connection, name: Any) -> None:
        with pytest.raises(ConfigurationError):
            admit(db, 1, owner=name)

    def test_of_an_effect(self, db: sqlite3.Connection, name: Any) -> None:
        with pytest.raises(ConfigurationError, match="effect_id"):
            fencing.once(db, name, resource="shop")


class TestMint:
    def test_a_reader_is_refused(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="read lock"):
            fencing.mint(db, "stock", lease(term(mode=Mode.SHARED)))

    def test_a_name_that_the_lock_has_tokens_for_is_refused(self, db: sqlite3.Connection) -> None:
        for resource, slot in ((ORDER, 0), (f"{ORDER}#1", 1)):
            with pytest.raises(ConfigurationError, match=f"'minted:{resource}'"):
                fencing.mint(db, resource, lease(term(slot=slot)))

    def test_outside_a_lock_there_is_no_lease(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError, match="no lock is held"):
            fencing.mint(db, "stock")

    def test_there_is_none_after_the_largest(self, db: sqlite3.Connection) -> None:
        with db:
            admit(db, 2**63 - 1, resource="stock")
        with pytest.raises(ConfigurationError, match="fencing token"), db:
            fencing.mint(db, "stock", lease(term()))
        assert fence(db) == {"stock": (2**63 - 1, "a")}


class Autocommitting(sqlite3.Connection):
    """What a connection of Python 3.12 and later says of itself."""

    autocommit = True


def ask_the_fence(db: Any) -> None:
    admit(db, 1)


def ask_once(db: Any) -> None:
    fencing.once(db, "event-1", resource="shop")


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
