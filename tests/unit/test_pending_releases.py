"""A release that the store did not hear is retried until it has, each once and in its order."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from celery_dlock.errors import BackendUnavailable
from celery_dlock.locks.pending_releases import FIRST_PAUSE, GIVE_UP_AFTER, PendingReleases
from celery_dlock.stores.base import InUse
from tests.services.until import until


class Store:
    """It is away for so many tries."""

    def __init__(self, away: int) -> None:
        self.away = away
        self.heard: list[str] = []
        self.pauses: list[float] = []
        self.now = 0.0

    def release(self, what: str) -> None:
        if self.away:
            self.away -= 1
            raise BackendUnavailable("no store")
        self.heard.append(what)

    def retry(self, releases: PendingReleases, *what: str) -> None:
        for each in what:
            releases.retry(each, partial(self.release, each))

    def wait(self, stirred: threading.Event, pause: float) -> bool:
        self.pauses.append(pause)
        self.now += pause
        return stirred.is_set()

    def releases(self) -> PendingReleases:
        return PendingReleases(monotonic=lambda: self.now, wait=self.wait)


def test_it_is_said_until_it_is_heard_with_growing_pauses() -> None:
    store = Store(away=7)
    releases = store.releases()

    store.retry(releases, "a is done", "b is over")

    until("both are heard", lambda: len(store.heard) == 2)
    assert store.heard == ["a is done", "b is over"]
    assert store.pauses[:8] == [0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0, 5.0]


def test_a_key_whose_transaction_is_open_holds_up_no_other_and_is_asked_for_as_often() -> None:
    store, both = Store(away=0), threading.Event()

    def wait(stirred: threading.Event, pause: float) -> bool:
        both.wait(60)
        return store.wait(stirred, pause)

    def in_use() -> None:
        if len(store.pauses) < 8:
            raise InUse("a transaction is open")
        store.heard.append("a is over")

    releases = PendingReleases(monotonic=lambda: store.now, wait=wait)
    releases.retry("a is over", in_use)
    store.retry(releases, "b is over")
    both.set()

    until("both are heard", lambda: len(store.heard) == 2)
    assert store.heard == ["b is over", "a is over"]
    assert max(store.pauses) == FIRST_PAUSE


def test_a_store_that_stays_away_is_said_once(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(away=3)
    releases = store.releases()
    others = set(threading.enumerate())

    store.retry(releases, "a is over")

    until("no thread is left", lambda: "celery-dlock-releases" not in _threads_but(others))
    assert [record.getMessage() for record in caplog.records] == [
        "the lock store has not heard what has ended, trying again: no store",
        "the lock store has heard what has ended, after 7 s",
    ]


def test_after_a_while_it_is_given_up_and_the_thread_ends() -> None:
    store = Store(away=10**6)
    releases = store.releases()
    others = set(threading.enumerate())

    store.retry(releases, "a is done")

    until("it ends", lambda: not releases._pending)
    assert GIVE_UP_AFTER <= sum(store.pauses) <= GIVE_UP_AFTER + 30
    store.away = 0
    store.retry(releases, "b is done")
    until("the next is heard", lambda: store.heard == ["b is done"])
    until("no thread is left", lambda: "celery-dlock-releases" not in _threads_but(others))


def test_when_it_is_closed_all_is_tried_once_more_and_the_thread_ends() -> None:
    store = Store(away=1)
    releases = PendingReleases()
    others = set(threading.enumerate())
    store.retry(releases, "a is done", "b is done", "c is done")
    until("it was tried in vain", lambda: not store.away)

    releases.close()

    assert store.heard == ["a is done", "b is done", "c is done"]
    assert "celery-dlock-releases" not in _threads_but(others)


def test_an_unavailable_store_is_asked_once_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(away=2)
    releases = PendingReleases()
    store.retry(releases, "a is done", "b is done")
    until("it was tried in vain", lambda: store.away == 1)

    releases.close()
    store.retry(releases, "c is done")

    assert store.heard == []
    assert not store.away
    assert [record.getMessage() for record in caplog.records[1:]] == [
        f"gave up telling the lock store that {task} is done" for task in "abc"
    ]


def test_who_ends_waits_until_the_store_has_heard(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(away=2)

    def wait(stirred: threading.Event, pause: float) -> bool:
        return stirred.wait(0 if pause <= FIRST_PAUSE else 600)

    releases = PendingReleases(wait=wait)
    store.retry(releases, "a is done", "b is done")
    until("it was tried in vain", lambda: store.away == 1)
    releases.finish(60)
    assert store.heard == ["a is done", "b is done"]
    said = [record.getMessage() for record in caplog.records]
    assert [text for text in said if "waiting up to" in text] == [
        f"{task} is done, and the lock store does not know it yet: waiting up to 60 s for the store"
        for task in "ab"
    ]
    until("no thread is left", lambda: not releases._pending)
    already = len(caplog.records)
    releases.finish(60)
    assert len(caplog.records) == already


def test_who_ends_does_not_wait_for_ever(caplog: pytest.LogCaptureFixture) -> None:
    store = Store(away=10**9)
    releases = PendingReleases()
    store.retry(releases, "a is done")

    releases.finish(0.05)

    assert caplog.records[-1].getMessage() == "gave up telling the lock store that a is done"
    releases.close()


def _threads_but(others: set[threading.Thread]) -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread not in others]
