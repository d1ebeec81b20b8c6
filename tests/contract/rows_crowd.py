"""Threads and processes that commit at once."""

from __future__ import annotations

import threading

from celery_dlock.stores.consensus.rows import Commit, Kind, Name, Row, Rows
from tests.contract.rows_words import (
    VERSION_ROW,
    happens,
    in_threads,
    value_of,
)


class Crowd:
    def test_of_many_at_once_each_success_counts(self, rows: Rows, others: Rows) -> None:
        numbers: list[int] = []
        failures: list[BaseException] = []
        start = threading.Barrier(6)

        def count(by: Rows) -> None:
            try:
                start.wait()
                for _ in range(20):
                    while True:
                        (row,) = by.read([VERSION_ROW])
                        value = b"%d" % (1 + int(row.value if row else 0))
                        committed = by.commit(Commit(VERSION_ROW, row, value))
                        if committed is not None:
                            numbers.append(committed.number)
                            break
            except BaseException as exc:
                failures.append(exc)
                raise

        threads = [threading.Thread(target=count, args=(by,)) for by in (rows, others) * 3]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

        assert not failures
        assert value_of(rows, VERSION_ROW) == b"120"
        assert len(set(numbers)) == 120

    def test_a_free_key_is_taken_by_one(self, rows: Rows, others: Rows) -> None:
        won: list[str] = []

        def take(by: Rows, me: str, barrier: threading.Barrier, key: str) -> None:
            version_row, row = Name(Kind.VERSION_ROW, key), Name(Kind.HOLDER, key, me)
            barrier.wait()
            if by.commit(Commit(version_row, None, me.encode(), held=(row, b""))) is not None:
                won.append(key)

        for turn in range(10):
            barrier = threading.Barrier(4)
            threads = [
                threading.Thread(target=take, args=(by, f"{n}", barrier, f"key {turn}"))
                for n, by in enumerate((rows, others) * 2)
            ]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
        assert sorted(won) == sorted(f"key {turn}" for turn in range(10))
        assert len(rows.names(Kind.HOLDER)) == 10

    def test_threads_share_it(self, rows: Rows) -> None:
        def work(number: int) -> None:
            name = Name(Kind.VERSION_ROW, f"key {number}")
            version_row: Row | None = None
            for turn in range(10):
                version_row = happens(rows, Commit(name, version_row, b"%d" % turn)).version_row
            happens(rows, Commit(name, version_row, None))

        in_threads(10, work)
        assert rows.names(Kind.VERSION_ROW) == []
