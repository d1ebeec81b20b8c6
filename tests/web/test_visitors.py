"""Who may see the page, who may act on it, and who is only made to seem so."""

from __future__ import annotations

import re
from typing import Any

import pytest
from celery import Celery
from starlette.requests import Request
from starlette.routing import Mount, Route

from celery_dlock.errors import ConfigurationError
from celery_dlock.ops.actions import ACTIONS
from celery_dlock.web import auth
from celery_dlock.web.auth import SignIn
from celery_dlock.web.site import site
from tests.web.conftest import AT, TOKEN, Open, hold, holders, secret_in, send
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

RELEASE = "/release?key=order:42&owner=ship:0:0|nonce-ship"
OWN = {"origin": AT}


@pytest.fixture(autouse=True)
def _held(app: Celery) -> None:
    hold(app, "order:42", "ship")


def test_a_holder_is_released_by_the_form_that_showed_it(app: Celery, operator: Visitor) -> None:
    said = send(operator, RELEASE)

    assert said.status_code == 303
    assert "order:42 is released; ship (" in operator.get(said.headers["location"]).text
    assert holders(app, "order:42") == []


def test_a_holder_that_came_since_is_left_alone(app: Celery, operator: Visitor) -> None:
    said = send(operator, RELEASE.replace("nonce-ship", "nonce-of-before"), form=RELEASE)

    assert "ship no longer holds order:42" in operator.get(said.headers["location"]).text
    assert holders(app, "order:42") == ["ship:0:0"]


def test_the_key_of_a_beat_steps_down_and_is_not_released(app: Celery, operator: Visitor) -> None:
    hold(app, "dlock:beat:shop", "beat")
    address = "/release?key=dlock:beat:shop&owner=beat:0:0|nonce-beat"

    said = send(operator, address, form=RELEASE)

    assert said.status_code == 400
    assert "--step-down" in said.text
    assert holders(app, "dlock:beat:shop") == ["beat:0:0"]


@pytest.mark.parametrize(
    "headers", [{}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": f"{AT}0"}]
)
def test_a_form_from_elsewhere_does_nothing(
    app: Celery, operator: Visitor, headers: dict[str, str]
) -> None:
    said = operator.post(RELEASE, data={"secret": secret_in(operator, RELEASE)}, headers=headers)

    assert said.status_code == 403
    assert holders(app, "order:42") == ["ship:0:0"]


def test_a_form_without_the_secret_of_its_session_does_nothing(
    app: Celery, operator: Visitor, open_site: Open
) -> None:
    other = open_site(token=TOKEN, writable=True)
    other.get("/sign-in", params={"token": TOKEN})

    for secret in ("", "nonsense", secret_in(other, RELEASE), "ä", auth.form_secret("")):
        said = operator.post(RELEASE, data={"secret": secret}, headers=OWN)
        assert said.status_code == 403, secret
    assert holders(app, "order:42") == ["ship:0:0"]


@pytest.mark.parametrize("act", sorted(ACTIONS))
def test_a_page_that_is_read_only_takes_no_orders(app: Celery, open_site: Open, act: str) -> None:
    client = open_site(token=TOKEN)
    client.get("/sign-in", params={"token": TOKEN})
    names = "owner=ship:0:0|nonce-ship&task=ship:0:0&was=x&slots=x&claim=x&task_id=x"
    address = f"/{act}?key=order:42&{names}"

    assert client.get(address).status_code == 403
    assert client.post(address, data={"secret": "x"}, headers=OWN).status_code == 403
    assert "Release" not in client.get("/key?key=order:42").text
    assert "hold…" not in client.get("/key?key=order:42").text
    assert holders(app, "order:42") == ["ship:0:0"]


def test_what_shows_something_takes_no_orders_at_all(operator: Visitor) -> None:
    for address in ("/", "/unique", "/key?key=order:42", "/dead", "/task", "/contention"):
        assert operator.get(address).status_code == 200, address
        assert operator.post(address, headers=OWN).status_code == 405, address


def test_without_the_token_there_is_only_signing_in(app: Celery, open_site: Open) -> None:
    client = open_site(token=TOKEN, writable=True)
    served: Any = site(app, token=TOKEN, writable=True)
    routes = [route for route in served.app.routes if isinstance(route, Route)]
    assert len(routes) >= 14

    for route in routes:
        for method in route.methods or ():
            said = client.request(method, route.path, headers=OWN)
            if route.path != "/sign-in":
                assert said.status_code == 401, (method, route.path)
            assert "order:42" not in said.text


@pytest.mark.parametrize("token", ["", "wrong", TOKEN[:-1], f"{TOKEN}x", "ä", "\ud800"])
def test_another_token_opens_nothing(open_site: Open, token: str) -> None:
    client = open_site(token=TOKEN)
    token_in_form = token.encode(errors="surrogatepass")

    by_link = client.get("/sign-in", params={"token": token.encode(errors="replace")})
    by_form = client.post("/sign-in", data={"token": token_in_form}, headers=OWN)

    assert (by_link.status_code, by_form.status_code) == (401, 401)
    assert "banner" in by_form.text
    assert "banner" not in open_site(token=TOKEN).get("/").text  # nobody has tried anything yet
    assert not client.cookies
    assert client.get("/").status_code == 401


def test_the_token_signs_in_and_is_not_kept(open_site: Open) -> None:
    client = open_site(token=TOKEN)

    said = client.post("/sign-in", data={"token": f" {TOKEN}\n"}, headers=OWN)

    assert (said.status_code, said.headers["location"]) == (303, "/")
    kept = said.headers["set-cookie"].lower()
    assert "httponly" in kept
    assert "samesite=strict" in kept
    assert TOKEN not in kept
    assert client.get("/").status_code == 200
    elsewhere = client.post("/sign-in", data={"token": TOKEN}, headers={"origin": "http://evil"})
    assert elsewhere.status_code == 403


def test_a_session_ends_with_its_token(monkeypatch: pytest.MonkeyPatch) -> None:
    session = SignIn(TOKEN).open(TOKEN)
    assert session is not None

    assert SignIn(TOKEN).knows(session)
    assert not SignIn(f"{TOKEN}2").knows(session)
    claim, _, signature = session.rpartition(".")
    later = f"{claim}9.{signature}"
    assert not any(map(SignIn(TOKEN).knows, (later, f"{session}0", "", ".", "a.b.c", "ä.1.x")))
    monkeypatch.setattr(auth, "SESSION_SECONDS", -1)
    ended = SignIn(TOKEN).open(TOKEN)
    assert ended is not None
    assert not SignIn(TOKEN).knows(ended)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({}, "who may see the page"),
        ({"token": TOKEN, "allowed": bool}, "either"),
        ({"allowed": True}, "a function of the request"),
        ({"allowed": bool, "writable": True}, "give a function of the request"),
        ({"token": "short"}, "16 characters"),
    ],
)
def test_the_site_says_who_may_do_what(app: Celery, options: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        site(app, **options)


def test_the_other_site_says_who_may_see_and_act(app: Celery, open_site: Open) -> None:
    async def is_staff(request: Request) -> bool:
        return request.headers.get("user") in ("reader", "boss")

    def is_boss(request: Request) -> bool:
        return request.headers.get("user") == "boss"

    client = open_site(allowed=is_staff, writable=is_boss)

    assert client.get("/").status_code == 403
    assert client.get("/", headers={"user": "reader"}).status_code == 200
    assert client.get(RELEASE, headers={"user": "reader"}).status_code == 403
    client.headers["user"] = "boss"
    secret = secret_in(client, RELEASE)
    client.headers["user"] = "reader"
    assert client.post(RELEASE, data={"secret": secret}, headers=OWN).status_code == 403
    assert holders(app, "order:42") == ["ship:0:0"]
    client.headers["user"] = "boss"
    assert client.post(RELEASE, data={"secret": secret}, headers=OWN).status_code == 303
    assert holders(app, "order:42") == []


def test_an_answer_that_is_not_true_is_a_no(open_site: Open) -> None:
    def forgets_to_return(request: Request) -> Any:
        request.headers.get("user")

    assert open_site(allowed=forgets_to_return).get("/").status_code == 403
    assert open_site(allowed=lambda request: "yes").get("/").status_code == 403


def test_a_form_that_is_too_large_is_not_read(operator: Visitor) -> None:
    said = operator.post(RELEASE, data={"secret": "x" * 10_000}, headers=OWN)

    assert said.status_code == 413


def test_two_sites_on_one_host_leave_each_other_signed_in(app: Celery) -> None:
    from starlette.applications import Starlette

    one, other = TOKEN, f"{TOKEN}-of-the-other"
    pages = [Mount("/shop", site(app, token=one)), Mount("/", site(app, token=other))]
    client = Visitor(Starlette(routes=pages), AT)
    for token, at in ((one, "/shop/"), (other, "/")):
        client.get(f"{at}sign-in", params={"token": token})

    for at in ("/shop/", "/"):
        assert client.get(at).status_code == 200, at
    assert len(client.cookies) == len({cookie.name for cookie in client.cookies.jar}) == 2


def test_under_a_prefix_every_link_and_cookie_stays_below_it(app: Celery) -> None:
    from starlette.applications import Starlette

    hold(app, "order:43", "pay", "waits")
    outer = Starlette(routes=[Mount("/shop/locks", site(app, token=TOKEN, writable=True))])
    client = Visitor(outer, AT)

    led = client.get("/shop/locks/sign-in", params={"token": TOKEN})
    assert led.headers["location"] == "/shop/locks/"
    assert "path=/shop/locks;" in led.headers["set-cookie"].lower()
    seen, todo = set[str](), ["/shop/locks/"]
    while todo:
        address = todo.pop()
        seen.add(address)
        said = client.get(address)
        assert said.status_code == 200, address
        assert said.headers["content-security-policy"]
        if "text/html" not in said.headers["content-type"]:
            continue
        links = re.findall(r'(?:href|src|action|hx-get)="([^"]*)"', said.text)
        links = [link.replace("&amp;", "&") for link in links if not link.startswith("#")]
        assert all(link.startswith("/shop/locks/") for link in links), address
        todo += [link for link in dict.fromkeys(links) if link not in {*seen, *todo}]
    assert {address.rpartition("/")[2].partition("?")[0] for address in seen} >= {
        *("", "key", "task", "dead", "contention", "release", "hold", "cancel"),
        *("dlock.css", "live.js", "htmx-2.0.11.min.js"),
    }
    said = send(client, "/shop/locks/release?key=order:43&owner=pay:0:0|nonce-pay")
    assert said.headers["location"].startswith("/shop/locks/key?")
