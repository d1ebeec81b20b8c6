"""What is held, what is waited for, what is dead, and one key with its past."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from celery_dlock.core.canonical import escape
from celery_dlock.inspection import overview
from celery_dlock.web.past import Bar
from celery_dlock.web.reading import ROWS
from celery_dlock.web.rendering import show

#: What was done, by the word for it in the address of the page after it.
DONE: Mapping[str, str] = {
    "released": "The key was taken from its holder.",
    "not-held": "Nothing was done: that holder has the key no more.",
    "cancelled": "The task is called, to end as revoked.",
    "not-waiting": "Nothing was done: that message waits no more.",
    "replayed": "The message waits for its key again.",
    "not-dead": "Nothing was done: that message is not dead any more.",
}


def held(request: Request) -> Response:
    """Some of the keys in use, by ``cursor``, perhaps only those with ``text`` in their name."""
    text = request.query_params.get("text", "")
    cursor = request.query_params.get("cursor", "")
    try:
        page = overview.page(request.app.state.celery, cursor, ROWS, match=escape(text))
    except ValueError as exc:
        raise HTTPException(400, "there is no such part of the list: begin at its start") from exc
    return show(request, "held.html", now=page.now, text=text, cursor=cursor, found=page)


def queues(request: Request) -> Response:
    """The queues, the one whose oldest message waits longest first."""
    found = request.app.state.queues.get()
    return show(request, "queues.html", now=found.now, found=found)


def one_key(request: Request) -> Response:
    """One ``key``: who holds it, who waits for it in their order, and who has held it."""
    key, before = wanted(request, "key"), request.query_params.get("before", "")
    try:
        zone = request.app.state.zone
        until = datetime.fromisoformat(before).astimezone(zone) if before else None
        past = request.app.state.past.of_key(key, until)
    except (ValueError, OverflowError) as exc:
        raise HTTPException(400, "that is no instant") from exc
    found = overview.Near.of(request.app.state.celery, key)
    return show(
        request,
        "key.html",
        now=found.now,
        key=key,
        found=found,
        holding={(holder.task_id, holder.token or None) for holder in found.line.holders},
        past=past,
        bars=Bar.of_all(past.holds),
        before=until,
        done=_done(request),
    )


def dead(request: Request) -> Response:
    """Messages that wait for a person, those first that are dead longest."""
    graves = request.app.state.dead.get()
    return show(
        request,
        "dead.html",
        now=graves.now,
        graves=graves.found,
        more=graves.more,
        show_args=request.app.state.show_args,
        done=_done(request),
    )


def wanted(request: Request, name: str) -> str:
    """What the query says under *name*; without it the request makes no sense."""
    value = request.query_params.get(name, "")
    if not value:
        raise HTTPException(400, f"the address says no {name}")
    return value


def _done(request: Request) -> str:
    return DONE.get(request.query_params.get("done", ""), "")
