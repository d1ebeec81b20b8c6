"""An app whose locks lie in a file, and the site of it without a server around it."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery

from celery_dlock.core import turns
from celery_dlock.core.events import Event
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import Cause, Claim, Outcome, WaitMode
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.runtime import forget, runtime
from celery_dlock.web.site import site
from tests.services.chromium import Browser, browser, chromium
from tests.services.until import until
from tests.web.page import TOKEN, Page
from tests.web.visitor import Visitor

__all__ = ["TOKEN", "browser", "chromium"]

AT = "http://127.0.0.1:8460"
MINUTE = 60_000_000

Open = Callable[..., Visitor]
Happened = Callable[..., None]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    made = Celery("shop", set_as_current=False)
    made.conf.update(broker_url="memory://", dlock_url=f"sqlite:///{tmp_path / 'locks.db'}")
    yield made
    forget(made)


@pytest.fixture
def open_site(app: Celery, tmp_path: Path) -> Open:
    """``open_site(token=…)``: a client of the site; without options everybody may see it.

    There is a store, be it an empty one.
    """
    (tmp_path / "locks.db").touch()

    def opened(**options: Any) -> Visitor:
        options = options or {"allowed": lambda request: True}
        return Visitor(site(app, **options), AT)

    return opened


@pytest.fixture
def operator(open_site: Open) -> Visitor:
    """Somebody who has signed in and may act."""
    client = open_site(token=TOKEN, writable=True)
    client.get("/sign-in", params={"token": TOKEN})
    return client


@pytest.fixture
def happened(app: Celery, tmp_path: Path) -> Happened:
    """``happened(event, …)``: these are in the history of *app*."""
    app.conf.dlock_history = f"sqlite:///{tmp_path / 'history.db'}"
    forget(app)
    sink = HistorySink.from_app(app)

    def write(*events: Event) -> None:
        for event in events:
            sink(event)
        sink.flush(60)

    return write


@pytest.fixture
def visitor(browser: Browser, page: Page) -> Iterator[Browser]:
    """Signed in at the *page* of the test's own file.

    Afterwards nothing was forbidden by the policy, and nobody else has been asked for anything.
    """
    browser.open(page.signed_in)
    browser.shows("Locks", "h1")
    assert TOKEN not in browser.driver.current_url
    yield browser
    assert browser.complaints() == []
    assert [address for address in browser.asked_for() if not address.startswith(page.at)] == []


def hold(app: Celery, key: str, *tasks: str) -> None:
    """The first of *tasks* holds *key*, the others wait for it."""
    for task in tasks:
        claim = Claim(key, f"{task}:0:0", f"nonce-{task}", ttl=10 * MINUTE, wait=WaitMode.QUEUE)
        runtime(app).backend.enter(claim, b"{}\n")


def die(app: Celery, key: str, task: str) -> None:
    """The message of *task*, which has been called for *key*, is called in vain until it is dead.

    Calls must be repeated at once here: see ``WAKE_AGAIN_FIRST``.
    """
    backend = runtime(app).backend

    def is_dead() -> bool:
        backend.reap(key)
        return backend.dead_letter(key, task, Cause.UNKNOWN_TASK).verdict

    until(f"{task} is dead", is_dead)


def dead_lettered(app: Celery, key: str, task: str, message: bytes) -> None:
    """The *message* of *task* is dead, for its runs were lost."""
    store, claim = runtime(app).backend, Claim(key, task, "nonce", ttl=MINUTE)
    for _ in range(MAX_LOST_RUNS):
        store.enter(claim)
        store.leave(claim, Outcome.ABANDONED)
    store.enter(replace(claim, wait=WaitMode.QUEUE), message)


def free(app: Celery, key: str) -> None:
    """Who holds *key* gives it back, and who is called is not published."""
    for holder in runtime(app).backend.peek(key).holders:
        claim = Claim(key, holder.task, holder.nonce, ttl=0)
        runtime(app).backend.leave(claim, Outcome.OVER)


@pytest.fixture
def called_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """In this process a call that nobody answers is repeated at once."""
    monkeypatch.setattr(turns, "WAKE_AGAIN_FIRST", 1)
    monkeypatch.setattr(turns, "WAKE_AGAIN_LAST", 1)


def holders(app: Celery, key: str) -> list[str]:
    return [holder.task for holder in runtime(app).backend.peek(key).holders]


def secret_in(client: Visitor, address: str) -> str:
    """What the form at *address* has of the session."""
    (found,) = set(re.findall(r'name="secret" value="([0-9a-f]+)"', client.get(address).text))
    return str(found)


def send(client: Visitor, address: str, form: str = "", **fields: str) -> httpx.Response:
    """Fill in the form at *form*, or at *address*, and send it there."""
    data = {"secret": secret_in(client, form or address), **fields}
    return client.post(address, data=data, headers={"origin": AT})


def spoil(folder: Path, key: str) -> None:
    """Something else has written to the store in *folder*."""
    with closing(sqlite3.connect(folder / "locks.db")) as db, db:
        db.execute("UPDATE state SET holders='<garbage>' WHERE key=?", (key,))


def said(client: Visitor, address: str) -> str:
    """The page at *address*, which is there."""
    answer = client.get(address)
    assert answer.status_code == 200, answer.text
    return str(answer.text)
