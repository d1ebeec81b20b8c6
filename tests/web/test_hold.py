"""A person puts a key on hold by the page, and ends that; everybody sees who and why."""

from __future__ import annotations

import re

import pytest
from celery import Celery

from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import PutOnHold
from celery_dlock.ops import holds, overview
from celery_dlock.ops.overview import OnHold
from celery_dlock.runtime import runtime
from tests.web.conftest import Open, hold, holders, said, send
from tests.web.test_audit import lines
from tests.web.visitor import Visitor

pytestmark = pytest.mark.once

KEY = "order:42"
HOLD = f"/hold?key={KEY}"
WHY = "the provider <b>books</b> twice"


def sends(client: Visitor, address: str, form: str = "", **fields: str) -> str:
    """Fill in the form at *form*, or at *address*, and send it there; what the page says then."""
    answer = send(client, address, form, **fields)
    assert answer.status_code == 303, answer.text
    return said(client, answer.headers["location"])


def on_hold(app: Celery) -> OnHold | None:
    return overview.line(app, KEY).hold


def test_it_is_put_on_hold_and_all_pages_say_who_and_why(app: Celery, operator: Visitor) -> None:
    hold(app, KEY, "ship", "pay")

    shown = sends(operator, HOLD, lasts="3600", because=WHY)

    assert f"{KEY} is on hold for 1 h, by session " in shown
    assert holders(app, KEY) == ["ship:0:0"]
    stands = on_hold(app)
    assert stands is not None
    assert re.fullmatch(r"session [0-9a-f]{8} at '127\.0\.0\.1'", stands.by)
    assert stands.because == WHY
    assert (stands.until - stands.since).total_seconds() == 3600
    for address in ("/", f"/key?key={KEY}", f"/end_hold?key={KEY}&was={stands.name}"):
        told = said(operator, address)
        assert "the provider &lt;b&gt;books&lt;/b&gt; twice" in told
        assert stands.by.replace("'", "&#39;") in told
    waits = said(operator, "/task?id=pay")
    assert "which is on hold until" in waits
    assert "and held by ship" in waits


def test_what_was_shown_is_ended_and_nothing_else(app: Celery, operator: Visitor) -> None:
    sends(operator, HOLD, lasts="900", because=WHY)
    stands = on_hold(app)
    assert stands is not None
    end, change = f"/end_hold?key={KEY}&was={stands.name}", f"{HOLD}&was={stands.name}"
    replaced = sends(operator, change, lasts="86400", because="it takes longer")
    assert f"{KEY} is on hold for 1 d, by session " in replaced

    for old in (end, change, HOLD):  # which somebody else has looked at before
        told = sends(operator, old, form="/hold?key=free", lasts="900", because=WHY)
        assert f"the hold of {KEY} is another one by now" in told
        assert f"the hold of {KEY} is another one by now" in _asked(operator, old)
    newer = on_hold(app)
    assert newer is not None
    assert newer.because == "it takes longer"
    ended = sends(operator, f"/end_hold?key={KEY}&was={newer.name}")

    assert f"{KEY} is on hold no more" in ended
    assert on_hold(app) is None


def _asked(client: Visitor, address: str) -> str:
    answer = client.get(address)
    assert answer.status_code == 303, address
    return said(client, answer.headers["location"])


@pytest.mark.parametrize(
    ("key", "lasts", "because"),
    [
        (KEY, "900", " "),
        (KEY, "900", "two\nlines"),
        (KEY, "900", "x" * (holds.LONGEST_REASON + 1)),
        (KEY, "", WHY),
        (KEY, "604801", WHY),
        (KEY, "-1", WHY),
        ("dlock:beat:shop", "900", WHY),
    ],
)
def test_what_nobody_can_mean_is_refused(
    app: Celery, operator: Visitor, key: str, lasts: str, because: str
) -> None:
    answer = send(operator, f"/hold?key={key}", HOLD, lasts=lasts, because=because)

    assert answer.status_code == 400
    assert overview.line(app, key).hold is None


def test_each_order_is_a_line_in_the_log(
    app: Celery, operator: Visitor, caplog: pytest.LogCaptureFixture
) -> None:
    sends(operator, HOLD, lasts="900", because=WHY)
    stands = on_hold(app)
    assert stands is not None
    sends(operator, f"/end_hold?key={KEY}&was={stands.name}")

    put, ended = lines(caplog)
    assert put.endswith(f"asked the page to hold key={KEY!r} lasts='900' because={WHY!r}: done")
    assert ended.endswith(f"asked the page to end_hold key={KEY!r} was={stands.name!r}: done")


def test_who_may_only_look_sees_it_and_has_no_button(app: Celery, open_site: Open) -> None:
    reader = open_site()
    runtime(app).backend.apply(PutOnHold(KEY, "", "first", "ann", "why", 60 * SECOND))

    told = said(reader, f"/key?key={KEY}")

    assert "On hold</strong> by <bdi>ann</bdi>" in told
    assert "End it" not in told
    assert reader.get(HOLD).status_code == 403
