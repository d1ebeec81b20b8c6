"""Every action of an operator by the page: it asks, is done once, and says what came of it."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from celery import Celery

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import PutOnHold
from celery_dlock.core.state import Claim, Outcome, WaitMode
from celery_dlock.core.unique import UniqueClaim
from celery_dlock.ops.actions import ACTIONS
from celery_dlock.runtime import runtime
from celery_dlock.web import auth
from tests.web.conftest import AT, Open, dead_lettered, hold, said, secret_in
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

BEAT = "dlock:beat:shop"
CLAIM = "charge(order=42)"

#: What each action names here, and what is said when it is done.
NAMED = {
    "release": ("key=held&owner=ship:0:0|nonce-ship", "held is released; ship (token "),
    "hold": ("key=free", "free is on hold for 1 h, by session "),
    "end_hold": ("key=closed&was=first", "closed is on hold no more"),
    "end_cooldown": ("key=cools&slots=nonce", "cools is open"),
    "cancel": ("key=held&task=pay:0:0", "pay is woken and will end as revoked"),
    "end_claim": (f"claim={quote(CLAIM)}&task_id=lives", f"the next call of {CLAIM} is published"),
    "replay": ("key=again&task=dead:0:0", "dead waits for again again"),
    "discard": ("key=gone&task=late:0:0", "late is discarded"),
    "step_down": ("owner=leads:0:0|nonce-leads", "leads is asked to step down"),
}


@pytest.fixture(autouse=True)
def _all_there(app: Celery) -> None:
    """What each action can be done to."""
    backend = runtime(app).backend
    hold(app, "held", "ship", "pay")
    hold(app, BEAT, "leads")
    standby = Claim(BEAT, "other:0:0", "n", SECOND, wait=WaitMode.PLACE, patience=600 * SECOND)
    backend.enter(standby)
    backend.apply(PutOnHold("closed", "", "first", "ann", "why", 600 * SECOND))
    cools = Claim("cools", "was:0:0", "nonce", 60 * SECOND, cooldown=3600 * SECOND)
    backend.enter(cools)
    backend.leave(cools, Outcome.DONE)
    claim = UniqueClaim("lives:0:0", "charge", "web:7", heard=0.0)
    backend.swap(CLAIM, None, claim.encode(), 60 * SECOND)
    dead_lettered(app, "again", "dead:0:0", b"message")
    dead_lettered(app, "gone", "late:0:0", b"message")


@pytest.mark.parametrize("name", sorted(ACTIONS))
def test_it_asks_is_done_once_and_says_what_came_of_it(operator: Visitor, name: str) -> None:
    names, done = NAMED[name]
    address = f"/{name}?{names}"
    page = said(operator, address)
    assert "If anything of this has changed by then, nothing is done." in page
    (to,) = re.findall(r'<form method="post" action="([^"]+)"', page)
    form = {"secret": secret_in(operator, address), "lasts": "3600", "because": "why"}

    first = operator.post(address, data=form, headers={"origin": AT})
    again = operator.post(address, data=form, headers={"origin": AT})

    assert to.startswith(f"/{name}?")
    assert (first.status_code, again.status_code) == (303, 303)
    assert done in said(operator, first.headers["location"])
    if name not in ("step_down", "cancel"):  # who was asked to go or to end may be asked again
        told = said(operator, again.headers["location"])
        assert "Nothing was done" in told or "is no longer a dead letter" in told


def test_the_pages_lead_there(operator: Visitor) -> None:
    linked = {
        *re.findall(r'href="/([a-z_]+)\?', said(operator, "/key?key=held")),
        *re.findall(r'href="/([a-z_]+)\?', said(operator, "/key?key=closed")),
        *re.findall(r'href="/([a-z_]+)\?', said(operator, "/key?key=cools")),
        *re.findall(r'href="/([a-z_]+)\?', said(operator, f"/key?key={BEAT}")),
        *re.findall(r'href="/([a-z_]+)\?', said(operator, "/dead")),
        *re.findall(r'href="/([a-z_]+)\?', said(operator, "/unique")),
    }
    assert set(ACTIONS) <= linked


def test_who_has_no_session_is_shown_no_words_either(open_site: Open) -> None:
    seal = auth._sign(auth.form_secret("").encode(), "said forged")

    assert 'class="done"' not in said(open_site(), f"/dead?said=forged&seal={seal}")


def test_an_address_of_others_puts_no_words_on_a_page(operator: Visitor) -> None:
    form = {"secret": secret_in(operator, "/hold?key=free")}
    names = NAMED["cancel"][0]
    done = operator.post(f"/cancel?{names}", data=form, headers={"origin": AT})
    location = done.headers["location"]
    assert "pay is woken" in said(operator, location)

    (seal,) = re.findall(r"seal=([0-9a-f]+)", location)
    for address in (
        f"/key?key=held&said=forged&seal={seal}",
        "/key?key=held&said=forged",
        "/?said=forged&seal=",
    ):
        assert 'class="done"' not in said(operator, address)


@pytest.mark.parametrize(
    "address",
    [
        "/release?key=held&owner=ship:0:0|nonce-of-before",
        "/hold?key=closed&was=of-before",
        "/end_hold?key=closed&was=of-before",
        "/end_cooldown?key=cools&slots=of-before",
        "/cancel?key=held&task=of-before:0:0",
        f"/end_claim?claim={quote(CLAIM)}&task_id=of-before",
        "/replay?key=again&task=of-before:0:0",
        "/discard?key=gone&task=of-before:0:0",
        "/step_down?owner=of-before",
    ],
)
def test_what_was_not_shown_is_left_alone(app: Celery, operator: Visitor, address: str) -> None:
    form = {"secret": secret_in(operator, "/hold?key=free"), "lasts": "900", "because": "why"}
    backend, keys = runtime(app).backend, ["held", "closed", "cools", "again", "gone", BEAT]
    before = backend.look(keys), backend.dead(), backend.swapped()

    done = operator.post(address, data=form, headers={"origin": AT})

    assert done.status_code == 303
    assert 'class="done"' in said(operator, done.headers["location"])
    assert (backend.look(keys), backend.dead(), backend.swapped()) == before
