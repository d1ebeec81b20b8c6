"""Keys, ids and names are anybody's text: on a page they are text, and lead where they should."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from typing import Any

import pytest
from celery import Celery

from celery_dlock.core.events import Acquired, Contended, Lost, Subject
from celery_dlock.core.state import Cause, Dead, Mode
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import DeadMessage
from tests.web.conftest import Happened, Open, hold, said

pytestmark = pytest.mark.once

HOSTILE = (
    "<script>window.pwned = 1</script>",
    '"><img src=x onerror="window.pwned = 1">',
    "' onmouseover='window.pwned = 1",
    "{{ 7 * 7 }}{% raw %}",
    "javascript:window.pwned=1",
    "../../static/../../etc/passwd",
    "order/42?x=1&key=other#part",
    "line\r\nSet-Cookie: a=b",
    "\u202egnp.exe\u2066\ufeff\x00\x1b[31m",
    "ключ-키-🔑",
    "x" * 4096,
)


class Elements(HTMLParser):
    """Which elements a page has, and with which attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.addresses: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.addresses += [v or "" for n, v in attrs if n in ("href", "src", "action", "hx-get")]


@pytest.mark.parametrize("text", HOSTILE, ids=range(len(HOSTILE)))
def test_a_hostile_text_stays_text(
    app: Celery, happened: Happened, open_site: Open, text: str
) -> None:
    hold(app, text, text, f"{text}2")
    about = Subject(text, text, text)
    happened(
        Acquired(about, (text,), (7,), 0.1, 30.0),
        Contended(about, text, text, 0, 0.0),
        Lost(about, text, text),
    )
    client = open_site()
    key = next(a for a in Elements(said(client, "/")).addresses if a.startswith("/key?"))
    task = next(a for a in Elements(said(client, key)).addresses if a.startswith("/task?"))
    plain = said(client, "/key?key=plain")

    for address in ("/", key, task, "/contention", f"/?text={key[9:]}"):
        page = said(client, address)
        found = Elements(page)
        assert found.names <= Elements(plain).names | WHERE_THERE_IS_SOMETHING, address
        assert page.count("<script") == plain.count("<script"), address
        assert not [name for name in found.attributes if name.startswith("on")], address
        assert all(at.startswith("/") or at == "#main" for at in found.addresses), address
        outside_fields = re.sub(r"<input[^>]*>", "", page)
        assert not re.search(r"[\x00\x1b\u202e\u2066\ufeff]", outside_fields), address
        assert "49{%" not in page
    assert "wait" in said(client, key)  # and not only is it harmless: it is that key
    assert ">7</td>" in said(client, key)


WHERE_THERE_IS_SOMETHING = {
    *("table", "thead", "tbody", "tr", "th", "td", "time", "span", "li", "svg", "rect"),
    *("dl", "dt", "dd", "b"),
    *("form", "label", "input", "button", "strong", "bdi", "div", "p", "h2", "a", "ul"),
}


def test_what_is_not_to_be_seen_is_shown_as_its_code(app: Celery, open_site: Open) -> None:
    hold(app, "order\u202e42\n", "ship")

    page = said(open_site(), "/")

    assert 'order<span class="unseen">U+202E</span>42<span class="unseen">U+000A</span>' in page


def test_every_answer_forbids_scripts_of_others_and_copies(open_site: Open) -> None:
    client = open_site()

    for address in ("/", "/nothing", "/?cursor=nonsense", "/key"):
        headers = client.get(address).headers
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
    assert client.get("/static/live.js").headers["x-content-type-options"] == "nosniff"


def test_no_page_has_a_script_or_a_style_within_itself(app: Celery, open_site: Open) -> None:
    hold(app, "order:42", "ship", "pay")
    client = open_site()

    for address in ("/", "/key?key=order:42", "/dead", "/contention", "/task?id=ship"):
        page = said(client, address)
        assert "style=" not in page
        assert "<style" not in page
        assert all("src=" in script for script in re.findall(r"<script[^>]*>", page))


@pytest.mark.parametrize(
    "address",
    ["/static/../site.py", "/static/%2e%2e/site.py", "/static/..%2fsite.py", "/static//etc/passwd"],
)
def test_only_what_is_for_everybody_is_handed_out(open_site: Open, address: str) -> None:
    answer = open_site().get(address)

    assert answer.status_code == 404
    assert "Starlette" not in answer.text


def test_arguments_of_the_dead_are_shown_only_where_that_was_asked_for(
    app: Celery, open_site: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = {"task": "shop.pay"}
    body = b'[["a secret"], {"<b>": 1}, {}]'
    entry = ParkedMessage(
        "b", "", "pay:0:0", "", "q", "application/json", "utf-8", headers, {}, body
    )
    letter = DeadMessage("order:42", _dead("pay:0:0"), entry.encode({}))
    monkeypatch.setattr(runtime(app).backend, "dead", lambda limit: [letter])

    hidden, shown = open_site(), open_site(allowed=lambda request: True, show_args=True)

    assert "shop.pay" in said(hidden, "/dead")
    assert "secret" not in said(hidden, "/dead")
    assert "a secret" in said(shown, "/dead")
    assert "<b>" not in said(shown, "/dead")


def _dead(task: str) -> Any:
    return Dead(task, Mode.EXCLUSIVE, Cause.UNKNOWN_TASK, 1_700_000_000_000_000)
