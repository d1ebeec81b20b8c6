"""A store over rows in memory, another process of it, and what happens to them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.consensus.rows import Commit, Kind
from tests.contract.memory_rows import RowsBackend


@pytest.fixture
def options(request: pytest.FixtureRequest) -> BackendOptions:
    return BackendOptions(prefix=request.node.nodeid)


@pytest.fixture
def store(options: BackendOptions) -> Iterator[RowsBackend]:
    with closing(RowsBackend(options)) as store:  # or its thread would speak in later tests
        yield store


@pytest.fixture
def other(options: BackendOptions) -> Iterator[RowsBackend]:
    """Another process, as far as rows are concerned."""
    with closing(RowsBackend(options)) as store:
        yield store


def die(store: RowsBackend, key: str = "key") -> None:
    """The process that holds *key* ends, and its rows with it."""
    for name in store.rows.names(Kind.HOLDER):
        if name.key == key:
            store.rows.drop(name)


def flights(store: RowsBackend) -> int:
    """How often the store has been asked since this was asked last."""
    store.rows.flights, counted = 0, store.rows.flights
    return counted


def later(store: RowsBackend, monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    now = store.rows.now() + int(seconds * SECOND)
    monkeypatch.setattr(store.rows, "now", lambda: now)
    monkeypatch.setattr(store._transactions, "now", lambda: now)
    monkeypatch.setattr(store._sweeping, "_now", lambda: now)


@contextmanager
def lost(store: RowsBackend, hook: str) -> Iterator[list[Commit]]:
    """The next commit in the block is not answered; it has happened if the *hook* comes after."""
    commits: list[Commit] = []

    def lose(commit: Commit) -> None:
        setattr(store.rows, hook, lambda _: None)
        commits.append(commit)
        raise BackendUnavailable("no answer in time")

    setattr(store.rows, hook, lose)
    with pytest.raises(BackendUnavailable):
        yield commits
