"""What only a file can get wrong: where it is, and what is in it."""

from __future__ import annotations

import logging
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.stores.base import BackendOptions, Swept
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing import ManualClock
from celery_dlock.testing.contract.words import QUEUE, SHARED, claim, park, running

TABLES = ("state", "waiting", "message", "past", "dead")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


def store(path: Path, clock: ManualClock | None = None, **driver: Any) -> SqliteBackend:
    return SqliteBackend.from_url(f"sqlite:///{path}", BackendOptions(clock=clock, driver=driver))


def count(path: Path, table: str) -> int:
    connection = sqlite3.connect(path)
    number: int = connection.execute(f"SELECT count(*) FROM {table}").fetchone()[0]
    connection.close()
    return number


# Where it is.


def test_who_looks_is_told_that_the_file_is_missing_until_somebody_makes_it(path: Path) -> None:
    backend = store(path)
    assert f"there is no lock store {path}: " in backend.missing()
    assert not path.exists()

    backend.enter(claim("a"))
    assert backend.missing() == ""
    backend.close()


@pytest.mark.parametrize("linked", [False, True])
def test_what_is_made_is_for_its_owner_alone_whatever_the_umask(path: Path, linked: bool) -> None:
    if linked:
        path.symlink_to(path.with_name("elsewhere.db"))
    before = os.umask(0)
    try:
        backend = store(path)
        running(backend.enter(claim("holds")))
        made = list(path.parent.iterdir())
    finally:
        os.umask(before)
    assert len(made) == 3 + linked, "the file, its log, and the index of that"
    assert {oct(file.stat().st_mode & 0o777) for file in made} == {"0o600"}


def test_a_file_that_exists_keeps_its_mode(path: Path) -> None:
    path.touch()
    path.chmod(0o640)
    running(store(path).enter(claim("holds")))

    assert path.stat().st_mode & 0o777 == 0o640


def test_three_slashes_are_relative_to_the_working_directory_of_the_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path)
    backend = SqliteBackend.from_url("sqlite:///my%20locks.db", BackendOptions())
    monkeypatch.chdir(tmp_path / "elsewhere")
    backend.enter(claim("a"))
    backend.close()

    assert (tmp_path / "my%20locks.db").exists()


@pytest.mark.parametrize(
    ("url", "names"),
    [
        *[(url, "memory://") for url in ("sqlite://", "sqlite:///", "sqlite:///:memory:")],
        *[(f"{url}locks.db", "sqlite:////absolute") for url in ("sqlite://host/", "x://")],
        ("sqlite:///locks.db?timeout=3", "sqlite:////absolute"),
    ],
)
def test_a_url_that_names_no_file_is_refused(url: str, names: str) -> None:
    with pytest.raises(ConfigurationError, match=names):
        SqliteBackend.from_url(url, BackendOptions())


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=f"{tmp_path / 'missing'} of dlock_url"):
        store(tmp_path / "missing" / "locks.db")


def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="of dlock_url is a folder"):
        store(tmp_path)


@pytest.mark.parametrize(
    "driver", [{"timeout": -1}, {"timeout": "5"}, {"timeout": float("inf")}, {"isolation": None}]
)
def test_driver_options_but_a_timeout_are_refused(path: Path, driver: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match="timeout"):
        store(path, **driver)


# What is in it.


def test_a_file_that_is_no_database_is_refused_and_left_alone(path: Path) -> None:
    path.write_text("notes " * 1_000)

    with pytest.raises(ConfigurationError, match="not an SQLite database"):
        store(path).enter(claim("a"))

    assert path.read_text() == "notes " * 1_000


def test_another_programs_database_is_refused_and_left_alone(path: Path) -> None:
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE orders (id INTEGER)")
    connection.close()
    before = path.read_bytes()

    with pytest.raises(ConfigurationError, match="another program's database"):
        store(path).enter(claim("a"))

    assert path.read_bytes() == before


def test_a_file_of_a_newer_release_is_refused(path: Path) -> None:
    backend = store(path)
    backend.enter(claim("a"))
    backend.close()
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version=3")
    connection.close()

    with pytest.raises(ConfigurationError, match="schema version 3"):
        store(path).enter(claim("a"))


def test_a_damaged_file_is_unavailable(path: Path) -> None:
    backend = store(path)
    for number in range(50):
        backend.enter(claim("a", key=f"key {number}"))
    backend.close()
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)

    with pytest.raises(BackendUnavailable, match="malformed"):
        store(path).enter(claim("a"))


@pytest.mark.parametrize(
    "damage", ["UPDATE state SET holders='nonsense'", "UPDATE waiting SET mode='nonsense'"]
)
def test_a_key_that_cannot_be_read_does_not_keep_others_from_being_swept(
    path: Path, clock: ManualClock, caplog: pytest.LogCaptureFixture, damage: str
) -> None:
    # Given two keys whose holders have died, and one of the two is spoilt
    backend = store(path, clock)
    for key in ("spoilt", "sound"):
        running(backend.enter(claim("a", key=key)))
        park(backend, "b", key=key)
        clock.advance(1)
    with backend._file.transaction() as db:
        db.execute(f"{damage} WHERE key='spoilt'")
    clock.advance(10)

    # When only one key at a time is swept, Then the spoilt one is told of and steps back
    assert backend.sweep(limit=1) == Swept((), 0)
    errors = [record.message for record in caplog.records if record.levelno == logging.ERROR]
    assert ["'spoilt'" in message for message in errors] == [True]
    assert [wake.key for wake in backend.sweep(limit=1).wakes] == ["sound"]

    # And it is looked at again
    running(backend.enter(claim("b", key="sound")))
    assert backend.sweep() == Swept((), 600)
    clock.advance(600)
    assert backend.sweep() == Swept((), 600)
    with pytest.raises(BackendUnavailable, match="'spoilt'"):
        backend.enter(claim("c", key="spoilt"))
    backend.close()


def test_every_commit_is_on_the_disk_before_it_is_answered(path: Path) -> None:
    backend = store(path)
    with backend._file.transaction() as db:
        synchronous = db.execute("PRAGMA synchronous").fetchone()[0]
        journal = db.execute("PRAGMA journal_mode").fetchone()[0]
    backend.close()

    assert (synchronous, journal) == (2, "wal")


def test_idle_keys_leave_no_row(path: Path, clock: ManualClock) -> None:
    backend = store(path, clock)
    for number in range(5):
        key = f"key {number}"
        backend.enter(claim("a", key=key))
        park(backend, "b", key=key)
        backend.enter(claim("c", key=key, mode=SHARED))
        backend.leave(claim("a", key=key, done_ttl=0), Outcome.DONE)
        backend.enter(claim("b", key=key, wait=QUEUE))
        backend.leave(claim("b", key=key, done_ttl=0), Outcome.DONE)
    backend.close()

    assert [count(path, table) for table in TABLES] == [0] * len(TABLES)


def test_what_is_remembered_is_swept_bit_by_bit(path: Path, clock: ManualClock) -> None:
    backend = store(path, clock)
    for number in range(200):
        backend.leave(claim(f"task {number}", key=f"key {number}"), Outcome.DONE)
    clock.advance(3601)
    for number in range(15):
        backend.leave(claim(f"later {number}"), Outcome.DONE)
    backend.close()

    assert count(path, "past") == 15
