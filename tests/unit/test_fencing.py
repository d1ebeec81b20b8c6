"""The fence, on real SQLite files: who may write, who comes too late, what a rollback undoes."""

from __future__ import annotations

import sqlite3
import subprocess
import sys

import pytest

from celery_dlock import fencing
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.locks.current import holding
from celery_dlock.locks.manager import EPOCH_SHIFT
from tests.fencing.leases import lease, term
from tests.unit.shop_database import ORDER, Connect, admit, connect, db, fence, paid, pay

__all__ = ["connect", "db"]

LARGEST = 2**63 - 1


class Clock:
    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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

    def test_is_of_one_key(self, db: sqlite3.Connection) -> None:
        """Events that are numbered by order have the same numbers in each."""
        with db:
            assert fencing.once(db, "e0", lease(term("order:1")))
            assert fencing.once(db, "e0", lease(term("order:2")))
            assert not fencing.once(db, "e0", lease(term("order:1", slot=2)))
            with holding(lease(term("order:2"), term("catalogue", mode=Mode.SHARED))):
                assert not fencing.once(db, "e0")
            assert fencing.once(db, "e0", lease(term("catalogue", mode=Mode.SHARED)))

    def test_of_several_keys_has_to_name_one(self, db: sqlite3.Connection) -> None:
        both = lease(term("order:1"), term("stock:9"))
        with db, pytest.raises(ConfigurationError, match=r"several keys.*resource='order:1'"):
            fencing.once(db, "e0", both)
        with db:
            assert fencing.once(db, "e0", both, resource="order:1")
            assert not fencing.once(db, "e0", lease(term("order:1")))

    def test_without_a_lease_has_to_name_one(self, db: sqlite3.Connection) -> None:
        with pytest.raises(ConfigurationError):
            fencing.once(db, "e0")

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
            assert fencing.once(db, "event-1", resource="shop") is True
            assert fencing.once(db, "event-1", resource="shop") is False
        with connect() as other:
            assert fencing.once(other, "event-1", resource="shop") is False
            assert fencing.once(other, "event-2", resource="shop") is True

    def test_is_undone_by_a_rollback(self, db: sqlite3.Connection) -> None:
        assert fencing.once(db, "event-1", resource="shop")
        db.rollback()
        assert fencing.once(db, "event-1", resource="shop")

    def test_a_redelivery_passes_the_fence_and_finds_the_effect_done(
        self, db: sqlite3.Connection
    ) -> None:
        for token in (7, 8):
            with db:
                admit(db, token, f"delivery {token}")
                if fencing.once(db, "event-1", resource="shop"):
                    db.execute("UPDATE orders SET paid = paid + 1")
        assert paid(db) == 1

    def test_a_refused_writer_claims_nothing(self, db: sqlite3.Connection) -> None:
        pay(db, 8, "b")
        assert fencing.once(db, "event-1", resource="shop")
        with pytest.raises(StaleFencingToken), db:
            admit(db, 7, "a")
        assert fencing.once(db, "event-1", resource="shop")


class TestMint:
    def test_who_loses_the_lock_as_it_counts_is_given_none(self, db: sqlite3.Connection) -> None:
        held = lease(term())
        db.execute("BEGIN")
        db.set_trace_callback(lambda statement: held.terms[0].lose("its lease has ended"))
        with pytest.raises(LockLost, match="has ended"):
            fencing.mint(db, "stock", held)


class TestEpochs:
    """A store that takes over gets an epoch, so that its tokens are larger than all before it."""

    def test_a_token_of_an_older_epoch_is_refused(self, db: sqlite3.Connection) -> None:
        pay(db, token=(1 << EPOCH_SHIFT) + 1, owner="b")
        with pytest.raises(StaleFencingToken):
            pay(db, token=(1 << EPOCH_SHIFT) - 1, owner="a")
        pay(db, token=(1 << EPOCH_SHIFT) + 2, owner="c")


class TestCost:
    def test_each_is_one_statement(self, db: sqlite3.Connection) -> None:
        said: list[str] = []
        db.execute("BEGIN")
        db.set_trace_callback(said.append)
        admit(db, 1)
        assert len(said) == 1
        with pytest.raises(StaleFencingToken):
            admit(db, 1, "b")
        assert len(said) == 2
        fencing.once(db, "event-1", resource="shop")
        fencing.mint(db, "stock", lease(term()))
        assert len(said) == 4

    def test_no_library_is_imported_before_it_is_used(self) -> None:
        ask = (
            "import sys, celery_dlock; before = set(sys.modules); import celery_dlock.fencing; "
            "print({'django', 'psycopg', 'pymysql', 'redis', 'sqlalchemy'} "
            "& {name.split('.')[0] for name in sys.modules.keys() - before})"
        )
        assert subprocess.check_output([sys.executable, "-c", ask], text=True) == "set()\n"
