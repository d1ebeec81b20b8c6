"""What a person may do here, each in two steps: what is going to happen is said before it does.

The address of a form names what its page showed, down to the claim of the holder; what has changed
meanwhile is left alone. Afterwards one is led back to the page, which says what was done.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_dlock.beat import leader
from celery_dlock.inspection import hands
from celery_dlock.inspection.overview import Held, Line, Near
from celery_dlock.web import audit
from celery_dlock.web.pages import DONE, wanted
from celery_dlock.web.rendering import link, show


def ask_release(request: Request) -> Response:
    """Who is shown is who is going to lose the key."""
    key, owner = wanted(request, "key"), wanted(request, "owner")
    holder = _holder(request, key, owner)
    if holder is None:
        return _back(request, "key", "not-held", key=key)
    return show(
        request,
        "release.html",
        key=key,
        holder=holder,
        consequences=hands.CONSEQUENCES,
        secret=_secret(request),
    )


def release(request: Request) -> Response:
    """Free the key from the holder that was shown, and from no other."""
    key, owner = wanted(request, "key"), wanted(request, "owner")
    holder = _holder(request, key, owner)

    def act() -> bool:
        return holder is not None and hands.release(request.app.state.celery, key, holder)

    done = audit.done(request, act, "release %r from %r", key, owner)
    return _back(request, "key", "released" if done else "not-held", key=key)


def ask_cancel(request: Request) -> Response:
    """The message of one task in one queue."""
    return _ask(request, "cancel.html")


def cancel(request: Request) -> Response:
    """Have it end as revoked."""
    message = _message(request)
    done = _done(request, hands.cancel, message, "cancel %r, which waits for %r")
    return _back(request, "key", "cancelled" if done else "not-waiting", key=message.key)


def ask_replay(request: Request) -> Response:
    """A dead message."""
    return _ask(request, "replay.html")


def replay(request: Request) -> Response:
    """Have it wait for its key again."""
    done = _done(request, hands.replay, _message(request), "replay %r for %r")
    return _back(request, "dead", "replayed" if done else "not-dead")


def _ask(request: Request, page: str) -> Response:
    return show(request, page, message=_message(request), secret=_secret(request))


def _done(
    request: Request, act: Callable[[Any, hands.Message], bool], message: hands.Message, what: str
) -> bool:
    app = request.app.state.celery
    _read(request, message.key)
    return audit.done(request, lambda: act(app, message), what, message.task_id, message.key)


def _message(request: Request) -> hands.Message:
    return hands.Message(wanted(request, "key"), wanted(request, "task"))


def _holder(request: Request, key: str, owner: str) -> Held | None:
    if key.startswith(leader.KEYS):
        raise HTTPException(403, "a beat leads by this key: use `dlock beat --hand-over`")
    found = _read(request, key)
    return next((held for held in found.holders if held.owner == owner), None)


def _read(request: Request, key: str) -> Line:
    """What the store says of *key*; of one that it cannot read it is said that nothing was done."""
    found = Near.of(request.app.state.celery, key).line
    if found.unreadable:
        raise HTTPException(409, f"the lock store cannot read this key: {found.unreadable}")
    return found


def _back(request: Request, page: str, done: str, **query: object) -> Response:
    assert done in DONE
    return RedirectResponse(link(request, page, **query, done=done), 303)


def _secret(request: Request) -> str:
    return str(request.state.dlock_secret)
