"""Whatever is sent to the page, by whoever: it answers, and its log has no traceback."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from celery import Celery
from hypothesis import given
from hypothesis import strategies as st
from starlette.types import ASGIApp, Message

from celery_dlock.ops.actions import ACTIONS
from celery_dlock.web.auth import KnownHosts
from celery_dlock.web.site import site
from tests.services.hostile import examples
from tests.services.until import until
from tests.web.conftest import TOKEN, hold
from tests.web.page import Page, page_of

pytestmark = pytest.mark.once

PATHS = [
    *("/", "/unique", "/key", "/task", "/contention", "/dead", "/sign-in", "//x", "*"),
    *(f"/{name}" for name in ACTIONS),
    *("/static/dlock.css", "/static/../site.py"),
]
ODD = [
    *("http://[", "http://[::1", "http://a:99999", "http://a:b", "null", "[", "a:99999", "a:b"),
    *("http://127.0.0.1:8460", "127.0.0.1:8460", "\x00", "\xff", "https://\u2100", "", "a b", "@"),
]
NAMES = [
    "key",
    "task",
    "id",
    "owner",
    "was",
    "cursor",
    "text",
    "before",
    "said",
    "seal",
    "slots",
    "claim",
    "task_id",
    "token",
    "secret",
]

BYTES = st.one_of(st.sampled_from([odd.encode() for odd in ODD]), st.binary(max_size=40))
QUERIES = st.one_of(  # a server lets nothing else through than what is quoted
    BYTES.map(lambda raw: quote(raw, safe="&=%;+").encode()),
    st.lists(st.tuples(st.sampled_from(NAMES), BYTES), max_size=4).map(
        lambda pairs: urlencode(pairs).encode()
    ),
)
HEADERS = st.lists(
    st.tuples(
        st.sampled_from(
            [
                *(b"host", b"origin", b"cookie", b"content-length", b"hx-request", b"range"),
                *(b"if-none-match", b"if-modified-since", b"content-type", b"x-forwarded-for"),
            ]
        ),
        BYTES,
    ),
    max_size=5,
)
SCOPES = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["GET", "POST", "HEAD", "PUT", "OPTIONS", "x"]),
        "path": st.one_of(st.sampled_from(PATHS), st.text().map(lambda text: f"/{text}")),
        "query_string": QUERIES,
        "headers": HEADERS,
        "scheme": st.sampled_from(["http", "https"]),
        "client": st.sampled_from([None, ("127.0.0.1", 1), ("x: done\nfrom", 1)]),
    }
)
BODIES = st.lists(QUERIES, max_size=3)


def status_of(served: ASGIApp, scope: dict[str, Any], body: list[bytes], hangs_up: bool) -> int:
    """What *served* answers; whoever asks sends *body* and then, perhaps, *hangs_up*."""
    parts: list[Message] = [
        {"type": "http.request", "body": part, "more_body": True} for part in body
    ]
    parts.append({"type": "http.disconnect" if hangs_up else "http.request", "body": b""})
    started: list[int] = []

    async def receive() -> Message:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Message) -> None:
        if message["type"] == "http.response.start":
            started.append(message["status"])

    whole = {"type": "http", "http_version": "1.1", "root_path": "", **scope}
    whole |= {"server": ("127.0.0.1", 8460), "state": {}}

    async def serve() -> None:
        await served(whole, receive, send)  # an exception of the site would come out of it

    asyncio.run(serve())
    return started[0]


@pytest.mark.parametrize("who", ["on loopback", "with a token", "who may act"])
@examples(40)
@given(scope=SCOPES, body=BODIES, hangs_up=st.booleans())
def test_any_request_is_answered(
    app: Celery, who: str, scope: dict[str, Any], body: list[bytes], hangs_up: bool
) -> None:
    hold(app, "order:42", "ship", "pay")
    assert status_of(served_to(who, app), scope, body, hangs_up) < 500


def served_to(who: str, app: Celery) -> ASGIApp:
    if who == "on loopback":
        return KnownHosts(site(app, allowed=lambda _: True), ["127.0.0.1"])
    if who == "with a token":
        return site(app, token=TOKEN, writable=True)
    return site(app, allowed=lambda _: True, writable=lambda _: True)


@pytest.mark.parametrize("origin", ["http://[", "http://[::1", "http://a:b", "//[", "\xff"])
def test_an_origin_that_is_none_is_refused(app: Celery, origin: str) -> None:
    scope = {"method": "POST", "path": "/sign-in", "query_string": b""}
    headers = [(b"host", b"127.0.0.1:8460"), (b"origin", origin.encode())]
    served = site(app, token=TOKEN)

    assert status_of(served, {**scope, "headers": headers}, [b"token=x"], False) == 403


def test_who_hangs_up_within_a_form_leaves_no_traceback(app: Celery) -> None:
    headers = [(b"host", b"127.0.0.1:8460"), (b"origin", b"http://127.0.0.1:8460")]
    scope = {"method": "POST", "path": "/sign-in", "query_string": b"", "headers": headers}

    assert status_of(site(app, token=TOKEN), scope, [b"token="], True) == 400


@pytest.fixture
def page(app: Celery, tmp_path: Any) -> Iterator[Page]:
    with page_of(app, tmp_path, "--writable") as page:
        yield page


RAW = [
    b"POST /sign-in HTTP/1.1\r\nHost: {at}\r\nOrigin: http://[\r\nContent-Length: 0\r\n\r\n",
    b"POST /sign-in HTTP/1.1\r\nHost: {at}\r\nOrigin: http://{at}\r\nContent-Length: 99\r\n\r\ntok",
    b"GET / HTTP/1.1\r\nHost: {at}\r\nHost: [\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: [\r\n\r\n",
    b"GET /key?key=%00%ff HTTP/1.1\r\nHost: {at}\r\nCookie: \xff=;;\x01\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET " + b"/" * 70_000 + b" HTTP/1.1\r\nHost: {at}\r\n\r\n",
    b"POST /sign-in HTTP/1.1\r\nHost: {at}\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    b"GET / HTTP/1.1\r\nHost: {at}\r\n",
]


def test_what_is_no_request_leaves_no_traceback_either(app: Celery, page: Page) -> None:
    at = f"127.0.0.1:{page.port}".encode()
    for raw in RAW:
        with socket.create_connection(("127.0.0.1", page.port)) as connection:
            connection.sendall(raw.replace(b"{at}", at))
            connection.shutdown(socket.SHUT_WR)
            while connection.recv(65_536):
                pass
    until("it still answers", page.answers)
    assert "Traceback" not in page.log.read_text()
