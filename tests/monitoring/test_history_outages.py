"""A database that is away costs no task anything, and of the events only what cannot be kept."""

from __future__ import annotations

from pathlib import Path

import pytest
from celery import Celery

from celery_dlock.core.events import Dropped, Event, StaleRejected, Subject
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.monitoring.history import TABLE, HistorySink, open_engine
from celery_dlock.monitoring.history_reader import HistoryReader
from celery_dlock.settings import HistoryOptions
from tests.monitoring.conftest import Open
from tests.services.postgresql import PostgresqlServer
from tests.services.until import until


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tries often."""
    monkeypatch.setattr(HistorySink, "gather", 0.05)
    monkeypatch.setattr(HistorySink, "first_pause", 0.05)
    monkeypatch.setattr(HistorySink, "last_pause", 0.1)


@pytest.fixture
def url(tmp_path: Path) -> str:
    """Of a database that is away until its folder is made."""
    return f"sqlite:///{tmp_path / 'away' / 'history.db'}"


def happens(number: int) -> Event:
    return Dropped(Subject(f"id-{number}", "task", "label"), "key", "done")


def warnings(caplog: pytest.LogCaptureFixture, what: str) -> list[str]:
    return [record.getMessage() for record in caplog.records if what in record.getMessage()]


def test_events_wait_for_it_and_it_is_said_once(
    history: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, reader = history()
    for number in range(3):
        sink(happens(number))
        until("an attempt was made", lambda: sink._pause)
    first = sink._thread
    with pytest.raises(BackendUnavailable, match="the history is unavailable"):
        reader.recent()

    (tmp_path / "away").mkdir()
    until("it is written", lambda: reader.recent() != ())
    until("all is written", lambda: len(reader.recent()) == 3)

    assert sink._thread is first
    assert [entry.task_id for entry in reader.recent()] == ["id-2", "id-1", "id-0"]
    assert len(warnings(caplog, "cannot be written")) == 1
    until("it was said", lambda: warnings(caplog, "can be written again"))
    assert len(warnings(caplog, "can be written again")) == 1


def test_when_they_become_too_many_the_oldest_are_gone_and_counted(
    history: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name, value in {"room": 20, "batch": 20, "gather": 3600.0, "first_pause": 3600.0}.items():
        monkeypatch.setattr(HistorySink, name, value)
    monkeypatch.setattr(HistorySink, "last_pause", 3600.0)
    sink, reader = history()

    for number in range(40):
        sink(happens(number))
    until("an attempt was made", lambda: sink._pause)
    for number in range(40, 50):
        sink(happens(number))
    (tmp_path / "away").mkdir()
    sink.flush(60)

    *kept, missing = reader.recent()
    assert [entry.task_id for entry in reversed(kept)] == [f"id-{n}" for n in range(30, 50)]
    assert (missing.event, missing.details) == ("Missing", {"events": 30})
    assert warnings(caplog, "30 events of locks are missing in the history")


def test_a_process_that_ends_does_not_wait_for_it_for_long(
    history: Open, caplog: pytest.LogCaptureFixture
) -> None:
    sink, _ = history()
    sink(happens(1))

    sink.flush(60)

    assert sink._thread is None
    assert warnings(caplog, "1 events of locks are missing in the history")


def test_one_that_cannot_be_written_does_not_keep_the_others_away(
    history: Open, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "away").mkdir()
    sink, reader = history()
    sink(happens(1))
    sink(StaleRejected(Subject("id-2", "task", "label"), "key", 2**70))
    sink(happens(3))
    sink.flush(60)

    assert [entry.task_id for entry in reader.recent()] == ["id-3", "id-1"]
    assert len(warnings(caplog, "is missing in the history")) == 1


@pytest.mark.server("postgresql")
@pytest.mark.slow
def test_a_server_that_was_killed_is_found_again(
    own_postgresql_server: PostgresqlServer, caplog: pytest.LogCaptureFixture
) -> None:
    app = Celery("history", set_as_current=False)
    app.conf.dlock_url = "memory://"
    app.conf.dlock_history = own_postgresql_server.url.replace("postgresql", "postgresql+psycopg")
    sink, reader = HistorySink.from_app(app), HistoryReader.from_app(app)
    sink(happens(1))
    until("it is written", lambda: len(reader.recent()) == 1)

    own_postgresql_server.kill()
    sink(happens(2))
    until("it is missed", lambda: warnings(caplog, "cannot be written"))
    with pytest.raises(BackendUnavailable):
        reader.recent()
    own_postgresql_server.start()

    until("it is written", lambda: len(found(reader)) == 2)
    sink.flush(60)
    reader.close()


def found(reader: HistoryReader) -> tuple[object, ...]:
    try:
        return reader.recent()
    except BackendUnavailable:
        return ()


def test_a_table_that_was_dropped_is_made_again(history: Open, url: str, tmp_path: Path) -> None:
    (tmp_path / "away").mkdir()
    sink, reader = history()
    sink(happens(1))
    until("it is written", lambda: len(reader.recent()) == 1)
    engine = open_engine(url)
    TABLE.drop(engine)
    engine.dispose()

    sink(happens(2))

    until("the next one is", lambda: len(found(reader)) == 1)


def test_without_events_thread_and_connection_are_given_back(
    history: Open, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HistorySink, "idle", 0.0)
    (tmp_path / "away").mkdir()
    sink, reader = history()
    for number in (1, 2):
        sink(happens(number))
        until("nothing is open", lambda: sink._thread is None)
        assert sink._engine.pool.checkedin() == 0  # type: ignore[attr-defined]
        assert len(reader.recent()) == number


@pytest.mark.parametrize(
    ("history_url", "what"),
    [
        ("oracle+cx_oracle://user:secret@host/db", "is not installed"),
        ("nosuch://user:secret@host/db", "nosuch"),
        ("postgresql+asyncpg://user:secret@host/db", "needs an event loop|not installed"),
        ("://user:secret@host", "no URL"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_an_impossible_url_is_refused_without_its_password(history_url: str, what: str) -> None:
    with pytest.raises(ConfigurationError, match=what) as refused:
        HistorySink(HistoryOptions(history_url))
    assert "secret" not in str(refused.value)


def test_a_reader_says_what_is_to_be_set() -> None:
    app = Celery("history", set_as_current=False)
    app.conf.dlock_url = "memory://"
    with pytest.raises(ConfigurationError, match="dlock_history is not set"):
        HistoryReader.from_app(app)
