"""With ten thousand keys a request still asks the store for little, and its answer is small."""

from __future__ import annotations

import html
import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.state import KeyState
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops import overview
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import LockBackend
from celery_dlock.web import pages
from celery_dlock.web.pages import Answers, Busy, Shared
from tests.services.until import until
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
    monkeypatch.setattr(pages, "FRESH", 3600.0)
    client = open_site()

    seen, address = list[str](), "/"
    for _ in range(3):
        page = said(client, address)
        assert len(page.encode()) < 60_000
        seen += re.findall(r"<bdi>(order:\d+)</bdi>", page)
        address = html.unescape(re.findall(r'id="more" href="([^"]+)"', page)[0])
    assert len(set(seen)) == len(seen) == 150
    assert "5,300 task" in re.sub("<[^>]+>", "", page)
    assert "5,001 keys" in page
    assert "101 to 150 of 10,000 keys" in page
    assert len(client.get("/", headers=PART).content) < 55_000
    assert said(client, "/?text=order:9999").count("<tr id=") == 1
    assert said(client, "/?waiting=1&page=101").count("<tr id=") == 1
    # The store was looked at once for all of these, a thousand keys at a time
    assert sum(looks) == 1 + 10_000
    assert len(looks) <= 1 + 6 + 10
    looks.clear()
    page = said(client, "/key?key=order:0")
    assert looks == [1]
    assert "300 tasks wait" in page
    assert page.count("<tr id=") < 50


def test_beyond_so_many_keys_the_rest_comes_by_pages(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(overview, "BATCH", 10)
    monkeypatch.setattr(pages, "KEYS", 70)
    for number in range(200):
        hold(app, f"order:{number:03}", f"ship{number}")
    hold(app, "order:150", "ship150", "waits")
    client = open_site()

    page = said(client, "/")
    assert "71+ keys" in re.sub("<[^>]+>", "", page)
    assert "There are more keys than the 71 that were read" in page
    assert re.findall(r"<bdi>(order:\d+)</bdi>", page)[0] == "order:150"
    seen, address = set[str](), "/"
    while address:
        page = said(client, address)
        seen.update(re.findall(r"<bdi>(order:\d+)</bdi>", page))
        following = re.findall(r'id="(?:more|rest)" href="([^"]+)"', page)
        address = html.unescape(following[0]) if following else ""
    assert len(seen) == 200
    assert "fits the filter" not in page
    assert "in no order" in page
    address = "/?text=order:199"
    assert "No key of those that were read fits" in said(client, address)
    (rest,) = re.findall(r'id="rest" href="([^"]+)"', said(client, address))
    assert "<bdi>order:199</bdi>" in said(client, html.unescape(rest))


def test_a_store_is_read_once_in_two_seconds_for_many_visitors(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(app, "order:42", "ship")
    now = [1000.0]
    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: now[0]))
    looks = counted(runtime(app).backend, monkeypatch)
    client = open_site()

    for _ in range(20):
        for address in ("/", "/?page=2", "/?task=ship"):
            said(client, address)
    assert sum(looks) == 2
    now[0] += 1.9
    said(client, "/")
    assert sum(looks) == 2
    now[0] += 0.2
    said(client, "/")
    assert sum(looks) == 4


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


def test_what_takes_long_to_read_is_read_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [1000.0]
    monkeypatch.setattr(pages, "time", SimpleNamespace(monotonic=lambda: now[0]))
    readings: list[float] = []

    def read() -> float:
        now[0] += 3.0
        readings.append(now[0])
        return now[0]

    shared = Shared(read)
    for _ in range(20):
        shared.get()
        now[0] += 1.0

    assert readings == [1003.0, 1018.0]


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


def test_those_who_ask_after_a_task_share_a_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages, "WAIT_FOR_OTHERS", 0.0)
    go_on, readings = threading.Event(), list[str]()
    asked = threading.Semaphore(0)

    def read(task_id: str) -> Any:
        readings.append(task_id)
        asked.release()
        assert go_on.wait(60)
        if task_id == "spoilt":
            raise ValueError(task_id)
        return len(readings)

    answers: Any = Answers(read)
    with ThreadPoolExecutor(20) as visitors:
        found = [visitors.submit(answers.of, "one"), visitors.submit(answers.of, "spoilt")]
        assert all(asked.acquire(timeout=60) for _ in found)
        found += [visitors.submit(answers.of, "one") for _ in range(10)]
        with pytest.raises(Busy):
            answers.of("another")
        shared = answers._reading["one"]._condition
        until("all of them wait", lambda: len(shared._waiters) == 10)
        go_on.set()
        assert isinstance(found.pop(1).exception(60), ValueError)
        assert {one.result(60) for one in found} == {2}
    assert sorted(readings) == ["one", "spoilt"]
    assert answers.of("one") == 3  # the next one is told what is so by then


def test_who_asks_after_too_many_tasks_at_once_is_asked_to_come_again(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "READINGS", 0)
    monkeypatch.setattr(pages, "WAIT_FOR_OTHERS", 0.0)

    response = open_site().get("/task?id=one")

    assert (response.status_code, response.headers["refresh"]) == (503, "5")
    assert "Many ask at once" in response.text
