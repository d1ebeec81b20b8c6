"""With ten thousand keys a request still asks the store for little, and its answer is small."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery

from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from celery_dlock.web.pages import Shared
from tests.web.conftest import Open, hold, said

pytestmark = pytest.mark.once

PART = {"hx-request": "true"}


def test_ten_thousand_keys_are_paged_and_a_page_asks_little(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.conf.dlock_url = "memory://"
    backend = runtime(app).backend
    for number in range(10_000):
        hold(app, f"order:{number}", f"ship{number}", *([f"pay{number}"] if number % 2 else []))
    hold(app, "order:0", *(f"task{number}" for number in range(300)))
    looks = counted(backend, monkeypatch)
    client = open_site()

    seen, address = list[str](), "/"
    for _ in range(3):
        page = said(client, address)
        assert len(page.encode()) < 60_000
        seen += re.findall(r"<bdi>(order:\d+)</bdi>", page)
        address = re.findall(r'id="more" href="([^"]+)"', page)[0]
    assert len(set(seen)) == len(seen) == sum(looks) <= 300
    assert len(client.get("/", headers=PART).content) < 55_000
    looks.clear()
    assert said(client, "/?text=order:9999").count("<tr id=") == 1
    assert sum(looks) == 1
    looks.clear()
    page = said(client, "/queues")
    assert sum(looks) == 5001
    assert "5300 messages wait for 5001 keys" in page
    assert page.count("<tr id=") == 50
    assert len(page.encode()) < 60_000
    looks.clear()
    page = said(client, "/key?key=order:0")
    assert looks == [1]
    assert "300 messages wait" in page
    assert page.count("<tr id=") < 50


def counted(backend: LockBackend, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many keys each look was for."""
    looks: list[int] = []
    look = backend.look

    def noted(keys: Sequence[str]) -> list[KeyState]:
        looks.append(len(keys))
        return look(keys)

    monkeypatch.setattr(backend, "look", noted)
    return looks


def test_what_is_shared_is_read_once_and_so_is_a_failure() -> None:
    answers: list[int | BackendUnavailable] = [1, BackendUnavailable("away"), 2]
    fresh = 3600.0

    def read() -> int:
        answer = answers.pop(0)
        if isinstance(answer, BackendUnavailable):
            raise answer
        return answer

    shared = Shared(read, fresh)
    assert [shared.get(), shared.get()] == [1, 1]

    shared = Shared(read, fresh)
    for _ in range(2):
        with pytest.raises(BackendUnavailable, match="away"):
            shared.get()

    shared = Shared(read, fresh=0.0)
    assert shared.get() == 2
    assert answers == []


def test_who_comes_while_another_one_reads_gets_what_was_there() -> None:
    reading, go_on = threading.Event(), threading.Event()
    answers = iter([1, 2])

    def read() -> int:
        answer = next(answers)
        if answer == 2:
            reading.set()
            assert go_on.wait(60)
        return answer

    shared = Shared(read, fresh=0.0)
    assert shared.get() == 1
    with ThreadPoolExecutor(1) as other:
        found = other.submit(shared.get)
        assert reading.wait(60)
        assert shared.get() == 1
        go_on.set()
        assert found.result(60) == 2
