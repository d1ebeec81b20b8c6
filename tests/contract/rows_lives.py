"""What lives as long as a process, as an instant says, or for good."""

from __future__ import annotations

import time

from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Rows
from tests.contract.rows_words import (
    DONE,
    HOLDER,
    MESSAGE,
    SECOND,
    VERSION_ROW,
    happens,
    made,
    tidy,
    value_after_tidying,
    value_of,
    version_row_of,
)
from tests.services.until import until


class Lives:
    def test_a_held_row_is_seen_by_all_until_dropped(self, rows: Rows, others: Rows) -> None:
        lease = rows.lease_of(10 * SECOND)
        committed = happens(rows, Commit(VERSION_ROW, None, b"", held=(HOLDER, b"me"), lease=lease))

        assert value_of(others, HOLDER) == b"me"
        assert rows.alive([HOLDER, Name(Kind.HOLDER, "key", "x")], lease) == [True, False]
        others.drop(HOLDER)
        assert rows.alive([HOLDER], lease) == [False]
        others.drop(HOLDER)
        assert version_row_of(rows) == committed.version_row

    def test_nobody_is_alive_of_nobody(self, rows: Rows) -> None:
        assert rows.alive([], SECOND) == []
        assert rows.alive([HOLDER], SECOND) == [False]
        rows.drop(HOLDER)

    def test_a_held_row_is_made_once_and_deleted_once(self, rows: Rows, others: Rows) -> None:
        version_row = happens(
            rows, Commit(VERSION_ROW, None, b"", held=(HOLDER, b""), lease=rows.lease_of(SECOND))
        ).version_row

        assert (
            others.commit(
                Commit(
                    VERSION_ROW, version_row, b"2", held=(HOLDER, b""), lease=rows.lease_of(SECOND)
                )
            )
            is None
        )
        happens(others, Commit(VERSION_ROW, version_row, None, delete={HOLDER}))
        assert rows.alive([HOLDER], SECOND) == [False]

    def test_who_is_alive_is_never_answered_from_stale_rows(self, rows: Rows, others: Rows) -> None:
        for number in range(30):
            holder = Name(Kind.HOLDER, "key", str(number))
            version_row = happens(
                rows,
                Commit(VERSION_ROW, None, b"", held=(holder, b""), lease=rows.lease_of(SECOND)),
            ).version_row
            happens(others, Commit(VERSION_ROW, version_row, None, delete={holder}))
            assert rows.alive([holder], SECOND) == [False]

    def test_only_held_rows_go_with_the_process(self, rows: Rows, others: Rows) -> None:
        theirs = Name(Kind.HOLDER, "key", "theirs")
        version_row = happens(
            others, Commit(VERSION_ROW, None, b"", held=(theirs, b""), lease=rows.lease_of(SECOND))
        ).version_row
        commit = Commit(
            VERSION_ROW,
            version_row,
            b"2",
            {DONE},
            {MESSAGE: b""},
            held=(HOLDER, b""),
            lease=others.lease_of(SECOND),
        )
        version_row = happens(rows, commit).version_row

        rows.close()

        until("the held row is gone", lambda: others.read([HOLDER]) == [None])
        assert others.alive([theirs], SECOND) == [True]
        assert version_row_of(others) == version_row
        assert value_of(others, MESSAGE) == b""

    def test_it_may_be_used_again_after_it_was_closed(self, rows: Rows) -> None:
        rows.close()
        version_row = made(rows)
        rows.close()
        rows.close()

        assert version_row_of(rows) == version_row
        happens(
            rows,
            Commit(VERSION_ROW, version_row, b"2", held=(HOLDER, b""), lease=rows.lease_of(SECOND)),
        )
        assert rows.alive([HOLDER], SECOND) == [True]

    def test_what_is_remembered_stays_for_its_time(self, rows: Rows, others: Rows) -> None:
        began = time.monotonic()
        happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"1", 2 * SECOND)}))
        long = Name(Kind.DONE, "key", "long")
        happens(rows, Commit(VERSION_ROW, None, None, remember={long: (b"2", 3600 * SECOND)}))

        assert value_of(others, DONE) == b"1"
        until("it is forgotten", lambda: value_after_tidying(others, DONE) is None)
        assert time.monotonic() - began >= 1.9
        assert value_of(others, long) == b"2"

    def test_what_is_remembered_anew_stays_for_its_new_time(self, rows: Rows) -> None:
        happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"1", SECOND)}))
        happens(rows, Commit(VERSION_ROW, None, None, delete={DONE}))
        happens(rows, Commit(VERSION_ROW, None, None, remember={DONE: (b"2", 3600 * SECOND)}))

        over = time.monotonic() + 2.5
        until("the first time is over", lambda: time.monotonic() > over)
        tidy(rows)
        assert value_of(rows, DONE) == b"2"

    def test_its_clock_is_that_of_all(self, rows: Rows, others: Rows) -> None:
        made(rows)
        made(others, Name(Kind.VERSION_ROW, "other"))

        here = time.time_ns() // 1000
        assert abs(rows.now() - here) < SECOND
        assert abs(rows.now() - others.now()) < SECOND // 5

    def test_the_lease_it_keeps_is_some_time(self, rows: Rows) -> None:
        assert rows.lease_of(10 * SECOND) > SECOND // 10

    def test_it_is_certain_while_it_can_be_reached(self, rows: Rows) -> None:
        assert rows.certain(0)
        made(rows)
        assert rows.certain(0)
