"""Who released, cancelled, replayed or discarded what by the page stands in its log."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import httpx
import pytest
from celery import Celery
from starlette.types import Receive, Scope, Send

from celery_dlock.errors import BackendUnavailable
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import runtime
from celery_dlock.web.site import site
from tests.web.conftest import AT, Open, dead_lettered, hold, send
from tests.web.page import page_of
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

RELEASE = "/release?key=order:42&owner=ship:0:0|nonce-ship"
CANCEL = "/cancel?key=order:42&task=pay:0:0"
REPLAY = "/replay?key=order:42&task=pay:0:0"
DISCARD = "/discard?key=order:42&task=pay:0:0"


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    found = [record.getMessage() for record in caplog.records]
    return [line for line in found if "asked the page" in line]


def test_each_order_is_a_line_with_the_user_the_key_and_what_came_of_it(
    app: Celery, caplog: pytest.LogCaptureFixture
) -> None:
    pages = site(app, allowed=lambda _: True, writable=lambda _: True)

    async def signed_in(scope: Scope, receive: Receive, answer: Send) -> None:
        await pages({**scope, "user": "alice\nbob"}, receive, answer)

    client = Visitor(signed_in, AT)
    hold(app, "order:42", "ship", "pay")
    forms = (CANCEL, RELEASE, "/hold?key=order:42", "/hold?key=order:42")
    for address, form in zip((CANCEL, RELEASE, REPLAY, RELEASE), forms, strict=True):
        assert send(client, address, form).status_code == 303

    who = "'alice\\nbob' at '127.0.0.1' asked the page to"
    assert lines(caplog) == [
        f"{who} cancel key='order:42' task='pay:0:0': done",
        f"{who} release key='order:42' owner='ship:0:0|nonce-ship': done",
        f"{who} replay key='order:42' task='pay:0:0': there was nothing to do",
        f"{who} release key='order:42' owner='ship:0:0|nonce-ship': there was nothing to do",
    ]


def test_who_signs_in_with_the_token_goes_by_the_session(
    app: Celery, operator: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    hold(app, "order:42", "ship", "pay")
    for address in (CANCEL, RELEASE):
        assert send(operator, address).status_code == 303

    found = "\n".join(lines(caplog))
    sessions = re.findall(r"^session ([0-9a-f]{8}) at '127\.0\.0\.1' asked", found, re.MULTILINE)
    assert (len(sessions), len(set(sessions))) == (2, 1)
    assert not [kept for kept in operator.cookies.values() if kept in found]


def test_an_order_of_which_nobody_knows_what_came_is_there_too(
    app: Celery, open_site: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any, **__: Any) -> Any:
        raise BackendUnavailable("away")

    hold(app, "order:42", "ship", "pay")
    client = open_site(allowed=lambda _: True, writable=lambda _: True)
    monkeypatch.setattr(runtime(app).backend, "apply", away)

    assert send(client, CANCEL).status_code == 503
    (line,) = lines(caplog)
    assert line.endswith("task='pay:0:0': it is not known whether it was done")


def test_nobody_else_is_named_by_a_header(app: Celery, tmp_path: Path) -> None:
    hold(app, "order:42", "ship", "pay")
    forged = {"x-forwarded-for": "10.9.9.9 asked the page to release 'all': done"}
    with page_of(app, tmp_path, "--writable") as page, httpx.Client(headers=forged) as client:
        client.get(page.signed_in)
        (secret,) = re.findall(r'value="([0-9a-f]{64})"', client.get(page.at + CANCEL).text)
        own = {"origin": page.at, "x-forwarded-proto": "https"}
        said = client.post(page.at + CANCEL, data={"secret": secret}, headers=own)

        assert said.status_code == 303
        (line,) = [line for line in page.log.read_text().splitlines() if "asked the page" in line]
        assert re.search(r" session [0-9a-f]{8} at '127\.0\.0\.1' asked the page to cancel", line)
        assert "10.9.9.9" not in line


def test_a_host_is_quoted(app: Celery, caplog: pytest.LogCaptureFixture) -> None:
    pages = site(app, allowed=lambda _: True, writable=lambda _: True)

    async def behind_a_proxy(scope: Scope, receive: Receive, answer: Send) -> None:
        await pages({**scope, "client": ("1.2.3.4\nx: done", 1)}, receive, answer)

    hold(app, "order:42", "ship", "pay")
    assert send(Visitor(behind_a_proxy, AT), CANCEL).status_code == 303
    (line,) = lines(caplog)
    assert "at '1.2.3.4\\nx: done' asked the page to cancel key='order:42'" in line


@pytest.mark.parametrize("expires", ["2001-02-03T04:05:06+00:00", None])
def test_what_has_expired_is_not_replayed_and_the_page_says_so(
    app: Celery, operator: Visitor, caplog: pytest.LogCaptureFixture, expires: str | None
) -> None:
    entry = ParkedMessage("", "", "pay:0:0", "", "", "", "", {"expires": expires}, {}, b"")
    dead_lettered(app, "order:42", "pay:0:0", entry.encode({}))

    assert send(operator, REPLAY).status_code == 303

    (line,) = lines(caplog)
    assert line.endswith("there was nothing to do" if expires else "done")
    assert len(runtime(app).backend.dead()) == bool(expires)


def test_a_dead_letter_is_discarded_once_and_its_event_names_who_did_it(
    app: Celery, operator: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    dead_lettered(app, "order:42", "pay:0:0", b"message")
    assert "Discard the message" in operator.get(DISCARD).text

    with caplog.at_level(logging.INFO, "celery_dlock"):
        for form in (DISCARD, "/hold?key=order:42"):
            assert send(operator, DISCARD, form).status_code == 303

    done, nothing = lines(caplog)
    assert done.endswith("discard key='order:42' task='pay:0:0': done")
    assert nothing.endswith("discard key='order:42' task='pay:0:0': there was nothing to do")
    told = [record.getMessage() for record in caplog.records]
    assert len([line for line in told if "was discarded at 'order:42', by session " in line]) == 1
    assert runtime(app).backend.dead() == []
