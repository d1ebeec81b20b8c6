"""Threads and processes that commit at once."""

from __future__ import annotations

from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row, Rows
from celery_dlock.testing.contract.words import at_once
from tests.contract.rows_words import VERSION_ROW, happens, value_of


class Crowd:
    def test_of_many_at_once_each_success_counts(self, rows: Rows, others: Rows) -> None:
        def count(number: int) -> list[int]:
            by, numbers = (rows, others)[number % 2], list[int]()
            while len(numbers) < 20:
                (row,) = by.read([VERSION_ROW])
                value = b"%d" % (1 + int(row.value if row else 0))
                committed = by.commit(Commit(VERSION_ROW, row, value))
                if committed is not None:
                    numbers.append(committed.number)
            return numbers

        numbers = [number for each in at_once(6, count) for number in each]

        assert value_of(rows, VERSION_ROW) == b"120"
        assert len(set(numbers)) == 120

    def test_a_free_key_is_taken_by_one(self, rows: Rows, others: Rows) -> None:
        for turn in range(10):

            def take(number: int, key: str = f"key {turn}") -> bool:
                held = (Name(Kind.HOLDER, key, str(number)), b"")
                commit = Commit(Name(Kind.VERSION_ROW, key), None, b"", held=held)
                return (rows, others)[number % 2].commit(commit) is not None

            assert sum(at_once(4, take)) == 1
        assert len(rows.names(Kind.HOLDER)) == 10

    def test_threads_share_it(self, rows: Rows) -> None:
        def work(number: int) -> None:
            name = Name(Kind.VERSION_ROW, f"key {number}")
            version_row: Row | None = None
            for turn in range(10):
                version_row = happens(rows, Commit(name, version_row, b"%d" % turn)).version_row
            happens(rows, Commit(name, version_row, None))

        at_once(10, work)
        assert rows.names(Kind.VERSION_ROW) == []
