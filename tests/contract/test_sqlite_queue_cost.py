"""What a long queue costs an operation in the SQLite file, in instructions of SQLite's machine."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Outcome
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken

FEW, MANY = 100, 100_000
HOUR = 3600.0


@pytest.fixture
def backend(tmp_path: Path) -> Iterator[SqliteBackend]:
    options = BackendOptions(clock=ManualClock())
    backend = SqliteBackend.from_url(f"sqlite:///{tmp_path / 'locks.db'}", options)
    yield backend
    backend.close()


def test_an_operation_costs_the_same_however_many_wait(backend: SqliteBackend) -> None:
    few, many = (costs(backend, f"key {waiting}", waiting) for waiting in (FEW, MANY))

    assert max(many.values()) < 2_000
    assert many == pytest.approx(few, rel=0.05)


def test_an_operation_costs_the_same_however_many_are_dead(backend: SqliteBackend) -> None:
    mine = claim("a", wait=QUEUE, keep=True)

    def of_each() -> list[int]:
        return of(
            backend,
            lambda: backend.enter(mine, b"message"),
            lambda: backend.enter(claim("b", wait=QUEUE), b"message"),
            lambda: backend.leave(mine, Outcome.OVER),
            lambda: backend.dead_letter("key", "b", Cause.UNREADABLE),
            lambda: backend.cancel("key", "b"),
            lambda: backend.dead(10),
            lambda: backend.dead_of(["task 7"]),
            lambda: backend.apply(Replay("key", "b")),
            backend.sweep,
            lambda: backend.leave(claim("b"), Outcome.OVER),
        )

    backend.reap("key")  # opens the file
    letters = [
        ("dlock", "key", f"task {n}", "exclusive", "unreadable", n, b"m") for n in range(10_000)
    ]
    costs = []
    for rows in (letters[:20], letters[20:]):
        with backend._file.transaction() as db:
            db.executemany("INSERT INTO dead VALUES (?, ?, ?, ?, ?, ?, ?)", rows)
        costs.append(of_each())
    few, many = costs

    assert len(backend.dead(limit=20_000)) == 10_000
    assert many == pytest.approx(few, rel=0.05)


def test_a_note_costs_the_same_beside_ten_thousand_others(backend: SqliteBackend) -> None:
    def of_each(key: str, others: int) -> list[int]:
        backend.note(key, 5, {f"name {n}": b"text" for n in range(others)})
        return of(
            backend,
            lambda: backend.note(key, 5, {"new": b"text"}),
            lambda: backend.note(key, 6, {"name 7": b"longer", "name 8": None}),
            lambda: backend.note(key, 4, {"name 7": b"stale"}),
        )

    few, many = of_each("few", 10), of_each("many", 10_000)

    assert many == pytest.approx(few, rel=0.05)


def test_a_page_and_a_look_cost_the_same_whatever_waits(backend: SqliteBackend) -> None:
    def of_each(key: str) -> list[int]:
        return of(
            backend,
            lambda: backend.look([key]),
            lambda: backend.keys(f">{key[:-1]}", limit=10),
            lambda: backend.keys(f">{key[:-1]}", limit=10, waiting=True),
        )

    for key, waiting in (("a", FEW), ("b", MANY)):
        for number in range(20):
            running(backend.enter(claim("holder", key=f"{key}{number:02d}", ttl=HOUR)))
            park(backend, "waits", key=f"{key}{number:02d}")
        fill(backend, f"{key}00", waiting)
    few = of_each("a00")
    held = [("dlock", f"b{n:05d}x", *["[]"] * 3, None, 0, 0, None) for n in range(10_000)]
    with backend._file.transaction() as db:
        db.executemany("INSERT INTO state VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", held)
    many = of_each("b00")

    assert max(many) < 3_000
    assert many == pytest.approx(few, rel=0.2)


def of(backend: SqliteBackend, *operations: Callable[[], object]) -> list[int]:
    """The instructions of each operation, one after the other."""
    return [instructions(backend, operation) for operation in operations]


def costs(backend: SqliteBackend, key: str, waiting: int) -> dict[str, int]:
    """What each operation takes on a key for which so many wait."""
    holder = claim("holder", key=key, ttl=HOUR)
    first, second = (claim(f"task {n}", key=key, wait=QUEUE) for n in (0, 1))
    running(backend.enter(holder))
    fill(backend, key, waiting)
    backend.reap(key)  # the index of due keys agrees again
    operations: dict[str, Callable[[], object]] = {
        "refusal": lambda: backend.enter(claim("other", key=key)),
        "copy": lambda: backend.enter(claim("task 77", "copy", key=key, wait=QUEUE), b"copy"),
        "newcomer": lambda: backend.enter(claim("new", key=key, wait=QUEUE), b"new"),
        "renewal": lambda: backend.renew([holder]),
        "reaping": lambda: backend.reap(key),
        "stranger": lambda: backend.leave(claim("stranger", key=key), Outcome.OVER),
        "first of the queue": lambda: backend.peek(key, 10),
        "where the last stands": lambda: backend.position(key, f"task {waiting - 1}"),
        "who is revoked": lambda: backend.parked([f"of {key}: task {waiting - 1}"]),
        "release": lambda: woken(backend.leave(holder, Outcome.DONE)),
        "turn": lambda: running(backend.enter(first, b"message")),
        "release of a turn": lambda: woken(backend.leave(first, Outcome.DONE)),
        "turn of the second": lambda: running(backend.enter(second, b"message")),
        "sweep": backend.sweep,
    }
    return {name: instructions(backend, operation) for name, operation in operations.items()}


def fill(backend: SqliteBackend, key: str, waiting: int) -> None:
    """Put tasks into the queue, past the store's own slower way."""
    tasks = [f"task {number}" for number in range(waiting)]
    entries = [
        ("dlock", key, task, "exclusive", rank, 0, None, None, 0, "", 0, "", 0)
        for rank, task in enumerate(tasks)
    ]
    with backend._file.transaction() as db:
        values = ", ".join("?" * len(entries[0]))
        db.executemany(f"INSERT INTO waiting VALUES ({values})", entries)
        messages = [("dlock", key, task, b"message") for task in tasks]
        db.executemany("INSERT INTO message VALUES (?, ?, ?, ?)", messages)
        db.execute("UPDATE state SET parked=? WHERE key=?", (waiting, key))


def instructions(backend: SqliteBackend, operation: Callable[[], object]) -> int:
    """How many SQLite's machine takes for *operation*."""
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    connection = backend._file._connection
    assert connection is not None
    connection.set_progress_handler(step, 1)
    operation()
    connection.set_progress_handler(None, 0)
    return taken
