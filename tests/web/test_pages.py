"""What the pages say, whoever wrote the texts on them, and what a request costs."""

from __future__ import annotations

import html
import re
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from celery import Celery

from celery_dlock import lock
from celery_dlock.core.debounce import DEBOUNCED
from celery_dlock.core.events import (
    Acquired,
    Contended,
    Lost,
    Released,
    StaleRejected,
    Subject,
    TimedOut,
)
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome, WaitMode
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import runtime
from celery_dlock.testing import ManualClock
from celery_dlock.web.site import site
from tests.services.until import until
from tests.web.conftest import AT, MINUTE, Happened, Open, hold, said, secret_in, spoil
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

PART = {"hx-request": "true"}


@pytest.mark.parametrize(
    "address",
    [
        "/?cursor=nonsense",
        "/?page=two",
        "/?cursor=%00%ff",
        "/key",
        "/key?key=",
        "/key?key=a&before=yesterday",
        "/key?key=a&before=0001-01-01T00:00:00%2B14:00",
    ],
)
def test_an_address_that_makes_no_sense_is_told_so(open_site: Open, address: str) -> None:
    assert open_site().get(address).status_code == 400


def test_an_end_beyond_the_calendar_is_shown(app: Celery, open_site: Open) -> None:
    hold(app, "order:43", "ship")
    forever = Claim("order:42", "pay:0:0", "nonce", ttl=9 * 10**18)  # somebody else wrote it
    runtime(app).backend.enter(forever)

    app.conf.timezone = "Pacific/Kiritimati"
    for address in ("/", "/key?key=order:42", "/task?id=pay"):
        assert "order:42" in said(open_site(), address)
    assert "order:43" in said(open_site(), "/")


def test_the_part_that_is_live_comes_without_the_rest(app: Celery, open_site: Open) -> None:
    hold(app, "order:42", "ship")

    part = open_site().get("/", headers=PART)

    assert "order:42" in part.text
    assert "Longest wait" in part.text
    assert "as of" in part.text
    assert "<html" not in part.text
    assert "<form" not in part.text


def test_what_opens_a_key_later_is_said_and_when(app: Celery, open_site: Open) -> None:
    backend, hour, client = runtime(app).backend, 3600 * SECOND, open_site()
    cools = Claim("tenant:7", "sync:0:0", "n", ttl=60 * SECOND, cooldown=hour)
    backend.enter(cools)
    backend.leave(cools, Outcome.DONE)
    assert "No key fits the filter" in said(client, "/?waiting=1")
    debounced = Claim(f"{DEBOUNCED}save(doc:7)", "save:0:0", nonce="", ttl=0)
    backend.postpone(debounced, b"message", hour, 2 * hour)

    for key, words in (
        (cools.key, "it is cooling down, and opens <time"),
        (debounced.key, "a call is debounced, and due <time"),
    ):
        assert f"nobody: {words}" in said(open_site(), "/")
        assert words[0].upper() + words[1:] in said(client, f"/key?key={quote(key)}")


def test_the_next_step_of_a_chain_is_named(app: Celery, open_site: Open) -> None:
    backend, step = runtime(app).backend, {"id": "b", "after": "fetch-1", "next": ["order:42"]}
    options = {"headers": {"id": "b", "task": "load", "dlock_step": step}}
    message = ParkedMessage.of_publish("", "import:7", "b:0:0", [], options).encode({})
    head = Claim("import:7", "b:0:0", "", ttl=0, wait=WaitMode.HEAD)
    backend.enter(Claim("import:7", "fetch-1:0:0", "n", ttl=60 * SECOND))
    backend.enter(head, message)

    assert "next: load, of the chain of fetch-1" in said(open_site(), "/key?key=import%3A7")


def test_unique_tasks_that_live_are_listed(app: Celery, open_site: Open) -> None:
    client = open_site()
    hold(app, "day:2", "runs")
    assert "No unique task lives" in said(client, "/unique")
    now = time.time()
    for claim in (
        UniqueClaim("waits:0:0", "report", "web:1", now - 90),
        UniqueClaim("runs:0:0", "report", "worker:2", now, "day:2"),
        UniqueClaim("was:0:0", "report", "worker:2", now, over=True, period_ends=now + 60),
    ):
        runtime(app).backend.swap(f"<{claim.task_id}>", None, claim.encode(), 10**9)

    client = open_site()
    page = said(client, "/unique")

    assert "3 live" in page
    assert "&lt;waits&gt;" in page
    assert "at the broker" in page
    assert 'href="/key?key=day%3A2"' in page or "day:2" in page
    assert "done; in its period" in page


def test_a_store_that_is_away_is_said_to_be(
    app: Celery, open_site: Open, operator: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold(app, "order:42", "ship")
    client = open_site()
    release = "/release?key=order:42&owner=ship:0:0|nonce-ship"
    secret = secret_in(operator, release)

    def away(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("nobody answers at <redis>")

    for name in ("keys", "look", "leave", "dead", "swapped"):
        monkeypatch.setattr(runtime(app).backend, name, away)

    for address in ("/", "/unique", "/key?key=order:42", "/dead"):
        page, part = client.get(address), client.get(address, headers=PART)
        assert (page.status_code, part.status_code) == (503, 503)
        assert page.headers["refresh"] == "5"
        assert "The lock store does not answer" in part.text
        assert "nobody answers at &lt;redis&gt;" in part.text
        assert "<html" not in part.text
        assert "as of" not in page.text + part.text
        assert "Traceback" not in page.text
    sent = operator.post(release, data={"secret": secret}, headers={"origin": AT})
    assert sent.status_code == 503
    assert "It is not known whether it was done" in sent.text
    assert "refresh" not in sent.headers


def test_looking_makes_no_store_and_a_lock_does(app: Celery, tmp_path: Path) -> None:
    file = tmp_path / "locks.db"
    client = Visitor(site(app, allowed=lambda request: True), AT)

    for address in ("/", "/unique", "/key?key=order:42", "/dead"):
        answer = client.get(address)
        assert answer.status_code == 503
        assert f"there is no lock store {file}: " in answer.text
    assert f"there is no lock store {file}: " in said(client, "/task?id=pay")
    assert list(tmp_path.iterdir()) == []

    with lock("order:42", app=app):
        until("it is looked at again", lambda: "order:42" in client.get("/").text)
    file.unlink()
    assert client.get("/key?key=order:42").status_code == 503


def test_a_defect_shows_no_traceback(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defect(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a password")

    client = open_site()
    monkeypatch.setattr(runtime(app).backend, "keys", defect)
    answer = client.get("/")

    assert answer.status_code == 500
    assert "password" not in answer.text
    assert "content-security-policy" in answer.headers


def test_without_a_history_the_page_says_what_to_set(app: Celery, open_site: Open) -> None:
    client = open_site()

    for address in ("/key?key=order:42", "/contention"):
        assert "dlock_history is not set" in said(client, address)


def test_a_key_shows_its_past_holders(app: Celery, happened: Happened, open_site: Open) -> None:
    first, second = Subject("first", "shop.ship", "o"), Subject("second", "shop.pay", "o")
    happened(
        Acquired(first, ("order:42",), (16,), 0.1, 30.0),
        Lost(first, "order:42", "the lease has ended"),
        Acquired(second, ("order:42",), (17,), 0.1, 30.0),
        Released(second, ("order:42",), "done", 0.5),
        Acquired(first, ("order:42",), (18,), 0.1, 30.0),
    )

    page = said(open_site(), "/key?key=order:42")

    periods, others = page.split("What else happened")
    assert "the lease has ended" in others
    rows = re.findall(r"<tr id=.*?</tr>", periods, re.DOTALL)
    texts = [re.sub(r"<[^>]+>|\s+", " ", row).split() for row in rows]
    told = [(row[0], row[1], row[-2], row[-1]) for row in texts]
    assert told == [
        ("shop.ship", "first", "unknown", "18"),
        ("shop.pay", "second", "done", "17"),
        ("shop.ship", "first", "lost", "16"),
    ]
    bars = re.findall(r'<rect class="(\w+)".*?<title>([^<]*)</title>', page)
    bars = [(kind, re.sub(r"[\d.]+ s\b", "0 s", text)) for kind, text in bars]
    assert bars == [
        ("lost", "shop.ship first: 0 s, lost"),
        ("held", "shop.pay second: 0 s, done"),
        ("unknown", "shop.ship first: end unknown"),
    ]
    legend = re.sub(r"<[^>]+>", "", page.split('<p class="axis">')[1].split("</p>")[0]).split()
    assert legend[1:-1] == ["held", "lost", "or", "abandoned", "end", "unknown"]
    assert legend[0] <= legend[-1]


def test_a_part_of_a_key_shows_its_first_rows_until_all_are_wanted(
    app: Celery, happened: Happened, operator: Visitor
) -> None:
    hold(app, "order:42", "holds", *(f"waits{number}" for number in range(7)))
    for number in range(6):
        past = Subject(f"past{number}", "shop.ship", "o")
        happened(
            Acquired(past, ("order:42",), (number + 1,), 0.1, 30.0),
            Lost(past, "order:42", "the lease has ended"),
        )
    address, rows = "/key?key=order:42", list[int]()
    for part, whole in (("waiting", 7), ("periods", 6), ("events", 6), ("waiting", 5)):
        page = said(operator, address)
        rows.append(page.count("<tr id="))
        way, words = re.findall(rf'id="all-{part}" href="([^"]+)#{part}">([^<]+)<', page)[0]
        assert words == (f"Show all {whole}" if whole > 5 else "Show the first 5")
        address = html.unescape(way)
    rows.append(said(operator, address).count("<tr id="))

    assert rows == [1 + 5 + 5 + 5, 1 + 7 + 5 + 5, 1 + 7 + 6 + 5, 1 + 7 + 6 + 6, 1 + 5 + 6 + 6]
    assert 'id="all-holders"' not in said(operator, address)
    assert said(operator, f"{address}%20nonsense").count("<tr id=") == rows[-1]


def test_how_one_waits_and_when_it_gives_up(app: Celery, open_site: Open) -> None:
    hold(app, "order:42", "ship")
    patient = Claim("order:42", "pay:0:0", "n", MINUTE, wait=WaitMode.QUEUE, gives_up=90 * MINUTE)
    again = Claim("order:42", "ask:0:0", "n", MINUTE, wait=WaitMode.PLACE, patience=MINUTE)
    runtime(app).backend.enter(patient, b"{}\n")
    runtime(app).backend.enter(again)

    page = said(open_site(), "/key?key=order:42")

    assert "<title>order:42 – dlock</title>" in page
    rows = {
        row.split("<bdi>")[1].split("<")[0]: row
        for row in re.findall(r"<tr id=.*?</tr>", page, re.DOTALL)
    }
    assert ">parked</td>" in rows["pay"]
    assert re.search(r'data-is="Gives up in"><time[^>]*>1 h (29|30) min', rows["pay"])
    assert ">rescheduled</td>" in rows["ask"]
    assert 'data-is="Gives up in" class="none"></td>' in rows["ask"]

    claim = Claim("order:42", "ship:0:0", "nonce-ship", MINUTE, successor="ship:1:0")
    runtime(app).backend.leave(claim, Outcome.OVER)
    assert re.search(r"has a turn for [^,]+ s, its message", said(open_site(), "/key?key=order:42"))


def test_who_holds_a_key_still_is_said_to(app: Celery, happened: Happened, open_site: Open) -> None:
    hold(app, "order:42", "ship")
    (now,) = runtime(app).backend.peek("order:42").holders
    ship, gone = Subject("ship", "shop.ship", "o"), Subject("gone", "shop.ship", "o")
    for subject, token in ((gone, now.token - 1), (ship, now.token)):
        happened(Acquired(subject, ("order:42",), (token,), 0.1, 30.0))

    page = said(open_site(), "/key?key=order:42")

    held, killed = re.findall(r"<tr id=.*?</tr>", page.split("Who held it</h2>")[1], re.DOTALL)
    assert ("holds it" in held, "unknown" in held) == (True, False)
    assert ("holds it" in killed, "unknown" in killed) == (False, True)


def test_a_holder_whose_lease_has_expired_is_lit(app: Celery, open_site: Open) -> None:
    hold(app, "order:1", "ship")
    runtime(app).backend.enter(Claim("order:2", "gone:0:0", "n", ttl=1))
    client = open_site()

    for address, lapsed in (("/key?key=order:1", False), ("/key?key=order:2", True), ("/", True)):
        page = said(client, address)
        assert ("expired <time" in page, 'number danger"' in page) == (lapsed, lapsed), address


def test_a_key_that_cannot_be_read_is_named_beside_the_others(
    app: Celery, open_site: Open, tmp_path: Path
) -> None:
    hold(app, "order:1", "ship", "pay")
    hold(app, "order:2", "refund", "audit")
    spoil(tmp_path, "order:2")
    client = open_site()

    for address in ("/", "/?waiting=1"):
        page = said(client, address)
        rows = re.findall(r"<tr id=.*?</tr>", page, re.DOTALL)
        good, bad = sorted(rows, key=lambda row: "order:2" in row)
        assert ("order:1" in good, "ship" in good) == (True, True)
        assert ("order:2" in bad, "cannot be read" in bad) == (True, True)


def test_the_page_of_a_key_that_cannot_be_read_says_so_and_shows_its_past(
    app: Celery, happened: Happened, operator: Visitor, tmp_path: Path
) -> None:
    hold(app, "order:2", "refund", "audit")
    happened(Acquired(Subject("refund", "shop.pay", "o"), ("order:2",), (1,), 0.1, 30.0))
    spoil(tmp_path, "order:2")

    page = said(operator, "/key?key=order:2")
    assert "answers but cannot read this key" in page
    assert "The lock store does not answer" not in page
    assert "shop.pay" in page
    assert "Nobody holds it" not in page


@pytest.mark.parametrize("act", ["release", "cancel", "replay", "discard"])
def test_an_order_about_a_key_that_cannot_be_read_says_so(
    app: Celery, operator: Visitor, tmp_path: Path, act: str
) -> None:
    hold(app, "order:2", "refund", "audit")
    address = f"/{act}?key=order:2&task=audit:0:0&owner=refund:0:0|nonce-refund"
    secret = secret_in(operator, "/hold?key=order:2")
    spoil(tmp_path, "order:2")

    refused = operator.post(address, data={"secret": secret}, headers={"origin": AT})

    assert refused.status_code == 409
    assert "<h1>Nothing was done</h1>" in refused.text
    assert "cannot read order:2" in refused.text


@pytest.mark.parametrize("years", [-1, 1])
def test_ages_are_by_the_stores_clock(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch, years: int
) -> None:
    clock = ManualClock()
    clock.advance(time.time() - clock() / SECOND + years * 365 * 86_400)
    monkeypatch.setattr(runtime(app).backend, "_now", clock)
    hold(app, "order:42", "ship", "pay")
    clock.advance(7)
    client = open_site()

    for address in ("/", "/key?key=order:42"):
        page = said(client, address)
        ages = re.findall(r"(?<!as of</span> )<time[^>]*>([^<]*)</time>", page)
        assert set(ages) <= {"7 s", "in 9 min 53 s"}, (address, ages)
        year = (datetime.now(UTC) + timedelta(days=365 * years)).year
        assert re.findall(r'as of</span> <time datetime="(\d+)', page) == [str(year)]
        assert "expired" not in page


def test_a_task_in_danger_is_lit(app: Celery, happened: Happened, open_site: Open) -> None:
    bad, good = Subject("1", "shop.bad", "o"), Subject("2", "shop.good", "o")
    happened(
        Acquired(bad, ("a",), (1,), took=16.0, ttl=30.0),
        Released(bad, ("a",), "done", held=25.0),
        Contended(bad, "a", None, 0, 0.0),
        TimedOut(bad, "a", 60.0),
        StaleRejected(bad, "orders", 1),
        Acquired(good, ("b",), (1,), took=15.0, ttl=30.0),
        Released(good, ("b",), "done", held=24.0),
    )

    page = said(open_site(), "/contention")

    assert "1 of 2 tasks need attention" in page
    assert "over the last hour." in re.sub(r"<[^>]+>", "", page)
    lit, calm = re.findall(r"<tr id=.*?</tr>", page, re.DOTALL)
    assert "shop.bad" in lit
    assert lit.count("danger") == 3
    assert "danger" not in calm
    zeros = re.findall(r'<td data-is="([^"]+)" class="number none quiet">', calm)
    assert zeros == ["Found it held", "Timed out", "Late writes", "Lost", "Skipped", "Dead"]


def test_a_task_that_waits_for_its_turn_and_holds_its_lock_for_long_is_not_lit(
    app: Celery, happened: Happened, open_site: Open
) -> None:
    first, again = Subject("1", "shop.report", "o"), Subject("2", "shop.report", "o")
    for attempt in range(50):
        happened(Contended(again, "a", "1", attempt, 60.0 * attempt))
    happened(
        Acquired(first, ("a",), (1,), took=0.0, ttl=30.0),
        Released(first, ("a",), "done", held=7200.0),
        Acquired(again, ("a",), (2,), took=0.0, ttl=30.0, waited=7200.0),
    )

    page = said(open_site(), "/contention")

    assert "0 of 1 task needs attention" in page
    assert "danger" not in page
    assert "2 h" in page
    assert "50 %" in page  # of two tasks one was refused, however often it asked


def test_what_repeats_is_told_once(app: Celery, happened: Happened, open_site: Open) -> None:
    task = Subject("waits", "shop.pay", "o")
    for attempt in range(9):
        happened(Contended(task, "order:42", "holds", attempt, 2.0 * attempt))
    happened(Acquired(task, ("order:42",), (7,), 0.1, 30.0))
    client = open_site()

    key, one = said(client, "/key?key=order:42"), said(client, "/task?id=waits")

    for page in (key, one):
        assert page.count("was refused") == 1
        assert "(the last of 9 times)" in page
    assert "with token 7" not in key  # which the period says in which it was held
    events = one.split("What happened, in order")[1]
    assert ("shop.pay" in events, "waits" in events.split("<tbody>")[1]) == (False, False)


def test_a_summary_and_the_longest_waits_come_first(app: Celery, open_site: Open) -> None:
    hold(app, "order:1", "ship")
    hold(app, "order:2", "pay", "audit")
    again = Claim("order:1", "back:0:0", "n", MINUTE, wait=WaitMode.PLACE, patience=MINUTE)
    runtime(app).backend.enter(again)

    page = said(open_site(), "/")

    summary = re.sub(r"<[^>]+>|\s+", " ", page.split("<dl")[1].split("</dl>")[0])
    told = " ".join(summary.split())
    assert "Held 2 keys Waiting 2 tasks for 2 keys Longest wait" in told
    assert "Dead letters 0 Store" in told
    assert "ms sqlite:///…/locks.db" in told
    rows = re.findall(r'id="[^"]+" href="/key[^"]+"><bdi>([^<]+)</bdi>', page)
    assert rows == ["order:2", "order:1"]


def test_the_store_is_named_without_its_login(app: Celery) -> None:
    app.conf.dlock_url = "redis://shop:sec%40ret@db.example:6379/3?socket_timeout=5"

    assert site(app, allowed=lambda request: True).app.state.store == (  # type: ignore[attr-defined]
        "redis://db.example:6379/3"
    )


def test_keys_are_filtered_by_task_and_by_worker(app: Celery, open_site: Open) -> None:
    for key, task, name, where in (
        ("order:1", "a1", "shop.ship", "celery@web1:7"),
        ("order:2", "b2", "shop.pay", "celery@web1:8"),
        ("order:3", "c3", "shop.ship", "celery@web2:9"),
    ):
        claim = Claim(key, f"{task}:0:0", "n", ttl=10 * MINUTE, name=name, where=where)
        runtime(app).backend.enter(claim)
    client = open_site()

    def shown(query: str) -> list[str]:
        page = said(client, f"/?{query}")
        return sorted(re.findall(r'href="/key[^"]+"><bdi>([^<]+)</bdi>', page))

    assert shown("") == ["order:1", "order:2", "order:3"]
    assert shown("task=ship") == ["order:1", "order:3"]
    assert shown("task=b2") == ["order:2"]
    assert shown("worker=web1") == ["order:1", "order:2"]
    assert shown("worker=web1&task=ship") == ["order:1"]
    assert shown("worker=web2&text=order:1") == []
    page = said(client, "/")
    assert page.index("shop.pay") < page.index(">b2<")
    assert "celery@web1:8" in page
