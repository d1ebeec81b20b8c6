"""Rows are found again: under any name, by kind and in parts, as they were written."""

from __future__ import annotations

from celery_dlock.stores.consensus.rows import PARTS, Commit, Kind, Name, Rows
from tests.contract.rows_words import (
    MESSAGE,
    NAMES,
    VERSION_ROW,
    happens,
    made,
    value_of,
    version_row_of,
)


class Reading:
    def test_what_is_not_there_is_none(self, rows: Rows) -> None:
        assert rows.read([]) == []
        assert rows.read([VERSION_ROW, MESSAGE]) == [None, None]

    def test_a_row_reads_as_it_was_written(self, rows: Rows, others: Rows) -> None:
        for number, value in enumerate([b"", b"\0", bytes(range(256)) * 10, b"x" * 400_000]):
            name, message = Name(Kind.VERSION_ROW, f"{number}"), Name(Kind.MESSAGE, f"{number}")
            version_row = happens(
                rows, Commit(name, None, b"", create={message: value})
            ).version_row
            happens(rows, Commit(name, version_row, value))

            for each in (rows, others):
                unchanged = value_of(each, name) == value_of(each, message) == value
                assert unchanged

    def test_rows_are_read_in_the_order_in_which_they_are_named(self, rows: Rows) -> None:
        names = [Name(Kind.PAGE, "key", str(n)) for n in range(40)]
        happens(
            rows, Commit(VERSION_ROW, None, b"", create={n: n.part.encode() for n in names[::2]})
        )
        version_row_of(rows)

        read = rows.read(names)

        assert [row and row.value for row in read[::2]] == [n.part.encode() for n in names[::2]]
        assert read[1::2] == [None] * 20

    def test_names_of_odd_characters_do_not_meet(self, rows: Rows) -> None:
        for number, key in enumerate(NAMES):
            part = NAMES[-1 - number]
            version_row, message = Name(Kind.VERSION_ROW, key), Name(Kind.MESSAGE, key, part)
            create = {message: str(number).encode(), Name(Kind.DUE, key, "1"): b""}
            happens(rows, Commit(version_row, None, b"", create=create))

        for number, key in enumerate(NAMES):
            assert value_of(rows, Name(Kind.MESSAGE, key, NAMES[-1 - number])) == b"%d" % number
        assert sorted(rows.names(Kind.VERSION_ROW)) == sorted(
            Name(Kind.VERSION_ROW, key) for key in NAMES
        )
        assert sorted(n.part for n in rows.names(Kind.MESSAGE)) == sorted(NAMES)
        assert sorted(n.key for n in rows.first(Kind.DUE, 1000)) == sorted(NAMES)

    def test_kinds_never_share_a_name(self, rows: Rows) -> None:
        create = {
            Name(kind, "key", "1"): kind.encode() for kind in Kind if kind != Kind.VERSION_ROW
        }
        happens(rows, Commit(VERSION_ROW, None, b"version row", create=create))

        version_row_of(rows)
        for name, value in create.items():
            assert rows.read([name])[0] is not None
            assert value_of(rows, name) == value
            assert rows.names(name.kind) == [name]

    def test_a_key_and_a_part_that_join_to_the_same_text_are_told_apart(self, rows: Rows) -> None:
        for number, (key, part) in enumerate([("a", "b,c"), ("a,b", "c"), ("a/b", "c")]):
            name = Name(Kind.MESSAGE, key, part)
            happens(
                rows, Commit(Name(Kind.VERSION_ROW, key), None, b"", create={name: b"%d" % number})
            )

        assert value_of(rows, Name(Kind.MESSAGE, "a", "b,c")) == b"0"
        assert value_of(rows, Name(Kind.MESSAGE, "a,b", "c")) == b"1"

    def test_names_are_listed_in_parts_that_together_are_all(self, rows: Rows) -> None:
        names = {Name(Kind.VERSION_ROW, f"key {n}") for n in range(300)}
        for name in names:
            made(rows, name)

        parts = [rows.names(Kind.VERSION_ROW, part) for part in range(PARTS)]

        assert sorted(name for part in parts for name in part) == sorted(names)
        assert max(map(len, parts)) < 50
        assert set(rows.names(Kind.VERSION_ROW)) == names
        assert rows.names(Kind.DEAD) == []

    def test_the_names_about_some_keys_are_found_and_no_others(self, rows: Rows) -> None:
        for key in NAMES:
            create = {Name(Kind.TASK, key, part): b"" for part in NAMES[:3]}
            happens(rows, Commit(Name(Kind.VERSION_ROW, key), None, b"", create=create))

        for some in (NAMES[:1], NAMES[2:5], [*NAMES, "another"]):
            expected = {Name(Kind.TASK, key, part) for key in some for part in NAMES[:3]}
            found = rows.names_of(Kind.TASK, some)
            assert set(found) == expected - {n for n in expected if n.key == "another"}
            assert len(found) == len(set(found))
        assert rows.names_of(Kind.TASK, []) == []

    def test_keys_are_listed_page_by_page_whatever_their_names(self, rows: Rows) -> None:
        names = {*NAMES, *(f"key {n}" for n in range(100))}
        for name in names:
            made(rows, Name(Kind.VERSION_ROW, name))

        for limit in (1, 7, 1_000):
            found: list[str] = []
            while page := rows.keys(found[-1] if found else None, limit):
                assert len(page) >= min(limit, len(names) - len(found))
                found += page
            assert sorted(found) == sorted(names)

    def test_a_page_begins_behind_a_key_that_is_gone(self, rows: Rows) -> None:
        for number in range(20):
            made(rows, Name(Kind.VERSION_ROW, f"key {number}"))
        order = rows.keys(None, 1_000)
        for last, expected in ((order[4], order[5:]), (order[19], [])):
            gone = Name(Kind.VERSION_ROW, last)
            happens(rows, Commit(gone, rows.read([gone])[0], None))

            assert rows.keys(last, 1_000) == expected

    def test_what_is_due_is_listed_in_order(self, rows: Rows) -> None:
        names = [Name(Kind.DUE, f"key {n}", f"{n * 7919 % 1000:016d}") for n in range(50)]
        for name in names:
            happens(rows, Commit(Name(Kind.VERSION_ROW, name.key), None, b"", create={name: b""}))

        expected = sorted(names, key=lambda name: name.part)
        assert rows.first(Kind.DUE, 1000) == expected
        assert rows.first(Kind.DUE, 7) == expected[:7]
        assert rows.first(Kind.DUE, 0) == []
