"""A commit happens whole if its version row still stands, and else not at all."""

from __future__ import annotations

from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row, Rows
from tests.contract.rows_words import (
    DONE,
    HOLDER,
    MESSAGE,
    SECOND,
    VERSION_ROW,
    happens,
    made,
    value_of,
    version_row_of,
)


class Commits:
    def test_commit_numbers_grow_over_keys_and_processes(self, rows: Rows, others: Rows) -> None:
        numbers = []
        for turn in range(6):
            name = Name(Kind.VERSION_ROW, f"key {turn % 3}")
            by = (rows, others)[turn % 2]
            numbers.append(happens(by, Commit(name, version_row_of(by, name), b"%d" % turn)).number)

        assert numbers == sorted(set(numbers))
        assert 0 < numbers[0] <= numbers[-1] < 2**53

    def test_a_row_is_born_with_the_commit_that_made_it(self, rows: Rows, others: Rows) -> None:
        first = happens(
            rows, Commit(VERSION_ROW, None, b"", create={MESSAGE: b""}, held=(HOLDER, b""))
        )
        assert first.version_row is not None
        happens(rows, Commit(VERSION_ROW, first.version_row, b"2", update={MESSAGE: b"2"}))

        version_row_of(others)
        read = others.read([VERSION_ROW, MESSAGE, HOLDER])
        assert [row and row.born for row in read] == [first.number] * 3

    def test_others_read_the_version_row_of_a_commit(self, rows: Rows, others: Rows) -> None:
        first = happens(rows, Commit(VERSION_ROW, None, b"1")).version_row
        assert version_row_of(others) == first
        second = happens(others, Commit(VERSION_ROW, first, b"2")).version_row
        assert version_row_of(rows) == second
        assert first is not None
        assert second is not None
        assert (first.value, second.value) == (b"1", b"2")
        assert first.stamp != second.stamp

    def test_a_moved_version_row_refuses_the_whole_commit(self, rows: Rows, others: Rows) -> None:
        old = made(rows)
        page, due = Name(Kind.PAGE, "key", "1"), Name(Kind.DUE, "key", "1")
        happens(others, Commit(VERSION_ROW, old, b"moved", create={page: b"theirs", due: b""}))

        stale = Commit(VERSION_ROW, old, b"mine", create={MESSAGE: b""}, update={page: b"mine"})
        stale.delete, stale.held, stale.remember = {due}, (HOLDER, b""), {DONE: (b"", SECOND)}
        assert rows.commit(stale) is None
        assert rows.commit(Commit(VERSION_ROW, old, None)) is None
        assert rows.commit(Commit(VERSION_ROW, old, old.value)) is None

        assert value_of(rows, VERSION_ROW) == b"moved"
        assert value_of(rows, page) == b"theirs"
        assert rows.first(Kind.DUE, 9) == [due]
        assert rows.read([MESSAGE, HOLDER, DONE]) == [None] * 3

    def test_a_version_row_that_is_there_is_not_made_anew(self, rows: Rows, others: Rows) -> None:
        made(others)

        assert rows.commit(Commit(VERSION_ROW, None, b"mine")) is None
        assert rows.commit(Commit(VERSION_ROW, None, None, create={MESSAGE: b""})) is None
        assert rows.commit(Commit(VERSION_ROW, None, None)) is None
        assert value_of(rows, VERSION_ROW) == b"version row"
        assert value_of(rows, MESSAGE) is None

    def test_a_version_row_made_anew_is_another_one(self, rows: Rows, others: Rows) -> None:
        """ABA: written as often as the one before, with the same values."""
        old = made(rows)
        assert happens(others, Commit(VERSION_ROW, old, None)).version_row is None
        for value in (b"mine", old.value, None):  # what is gone stands for nothing
            assert rows.commit(Commit(VERSION_ROW, old, value)) is None
        assert version_row_of(rows) is None
        new = made(others)

        assert new.stamp != old.stamp
        assert new.born > old.born
        for value in (b"mine", old.value, None):
            assert rows.commit(Commit(VERSION_ROW, old, value, create={MESSAGE: b""})) is None
        assert rows.commit(Commit(VERSION_ROW, old, old.value)) is None
        assert version_row_of(rows) == new
        assert value_of(rows, MESSAGE) is None

    def test_a_commit_without_a_version_row_leaves_none(self, rows: Rows, others: Rows) -> None:
        committed = happens(rows, Commit(VERSION_ROW, None, None, create={MESSAGE: b"1"}))

        assert committed.version_row is None
        assert version_row_of(others) is None
        assert value_of(others, MESSAGE) == b"1"

    def test_what_has_to_be_absent_stands_against_a_commit(self, rows: Rows, others: Rows) -> None:
        wanted = Commit(VERSION_ROW, None, b"", absent={DONE, HOLDER}, create={MESSAGE: b""})
        happens(others, Commit(VERSION_ROW, None, None, create={DONE: b""}))

        assert rows.commit(wanted) is None
        assert rows.commit(Commit(VERSION_ROW, None, None, absent={DONE})) is None
        assert version_row_of(rows) is None
        assert rows.read([MESSAGE]) == [None]

        happens(others, Commit(VERSION_ROW, None, None, delete={DONE}))
        happens(rows, wanted)
        assert value_of(rows, MESSAGE) == b""
        assert rows.read([DONE, HOLDER]) == [None, None]

    def test_what_is_to_be_deleted_has_to_be_there(self, rows: Rows) -> None:
        version_row: Row | None = made(rows)

        assert rows.commit(Commit(VERSION_ROW, version_row, b"2", delete={MESSAGE})) is None
        assert version_row_of(rows) == version_row
        version_row = happens(
            rows, Commit(VERSION_ROW, version_row, b"2", create={MESSAGE: b""})
        ).version_row
        happens(rows, Commit(VERSION_ROW, version_row, None, delete={MESSAGE}))
        assert value_of(rows, MESSAGE) is None

    def test_what_is_written_again_has_another_stamp(self, rows: Rows) -> None:
        commit = Commit(VERSION_ROW, None, b"", create={MESSAGE: b"same"})
        seen = []
        for turn in range(3):
            version_row = happens(rows, commit).version_row
            version_row_of(rows)
            (row,) = rows.read([MESSAGE])
            assert row is not None
            assert row.value == b"same"
            seen.append(row.stamp)
            commit = Commit(VERSION_ROW, version_row, b"", update={MESSAGE: b"same"})
            if turn == 1:
                version_row = happens(
                    rows, Commit(VERSION_ROW, version_row, b"", delete={MESSAGE})
                ).version_row
                commit = Commit(VERSION_ROW, version_row, b"", create={MESSAGE: b"same"})
        assert len(set(seen)) == 3

    def test_any_change_moves_the_version_row_though_it_says_the_same(self, rows: Rows) -> None:
        old = made(rows)
        new = happens(rows, Commit(VERSION_ROW, old, old.value, create={MESSAGE: b""})).version_row

        assert new is not None
        assert new.value == old.value
        assert new.stamp != old.stamp
        assert rows.commit(Commit(VERSION_ROW, old, b"mine")) is None
        happens(rows, Commit(VERSION_ROW, new, b"mine"))

    def test_a_commit_that_changes_nothing_only_asks(self, rows: Rows, others: Rows) -> None:
        assert happens(rows, Commit(VERSION_ROW, None, None, absent={DONE})).version_row is None
        version_row = made(rows)

        for each in (rows, others):
            assert (
                happens(each, Commit(VERSION_ROW, version_row, version_row.value)).version_row
                == version_row
            )
        happens(rows, Commit(VERSION_ROW, version_row, b"2"))
        assert others.commit(Commit(VERSION_ROW, version_row, version_row.value)) is None

    def test_a_commit_takes_dozens_of_rows(self, rows: Rows) -> None:
        create = {Name(Kind.MESSAGE, "key", str(n)): b"x" * 1000 for n in range(40)}
        version_row = happens(rows, Commit(VERSION_ROW, None, b"", create=create)).version_row
        assert set(rows.names(Kind.MESSAGE)) == set(create)
        happens(rows, Commit(VERSION_ROW, version_row, None, delete=set(create)))
        assert rows.names(Kind.MESSAGE) == []
