"""The page as an ASGI application: on its own for ``celery dlock web``, or inside another site.

Each request asks the store a bounded amount, in a thread. Pages are rendered here and stay true by
asking for themselves again; no script knows what a lock is. Where there is no page to show, a
visitor is told why; never a traceback, which the log has.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.ops.actions import ACTIONS
from celery_dlock.ops.dead_letters import DeadLetterList
from celery_dlock.ops.explain import explain
from celery_dlock.ops.unique import LivingList
from celery_dlock.ops.urgent import Snapshot
from celery_dlock.runtime import runtime
from celery_dlock.stores.base import servers_of
from celery_dlock.web import pages
from celery_dlock.web.auth import Allowed, SecurityHeaders, SignIn, Visitors, sign_in_routes
from celery_dlock.web.history_view import GOOD_FOR, HistoryView
from celery_dlock.web.pages import ROWS, Answers, Busy, Shared
from celery_dlock.web.rendering import FOLDER, show

#: After so many seconds a browser asks again for a page that it did not get.
ASK_AGAIN = "5"

_TITLES = {
    400: "This address is not valid",
    401: "Sign in",
    403: "Not allowed",
    404: "There is no such page",
    405: "This page takes no actions",
    409: "Nothing was done",
}


def site(
    app: Any,
    *,
    allowed: Allowed | None = None,
    token: str | None = None,
    writable: bool | Allowed = False,
    show_args: bool = False,
) -> ASGIApp:
    """The pages of *app*, to be served or mounted, seen by whoever is *allowed* or has *token*.

    *allowed* and *writable* take a Starlette request and return, or await, a bool. With a *token*
    visitors sign in; ``writable=True`` is for them. *show_args* shows arguments of dead messages.

    Raises :exc:`~celery_dlock.ConfigurationError` unless exactly one of *allowed* and *token* is
    given, if every visitor could act, and if the configuration of locks is not usable. It does not
    connect to the store.
    """
    if (allowed is None) == (token is None) or not callable(allowed or _nobody):
        raise ConfigurationError(
            "who may see the page? Give site() either allowed=, a function of the request, "
            "or token=, a secret to sign in with"
        )
    if writable is True and token is None:
        raise ConfigurationError(
            "with allowed=, writable=True would let every visitor act: give a function of the "
            "request, or use token="
        )
    runtime(app)
    sign_in = None if token is None else SignIn(token)
    visitors = Visitors(sign_in, allowed or _nobody, writable)
    made = Starlette(
        routes=[
            *sign_in_routes(sign_in),
            Route("/", visitors.page(pages.held), name="held"),
            Route("/unique", visitors.page(pages.unique), name="unique"),
            Route("/key", visitors.page(pages.one_key), name="key"),
            Route("/task", visitors.page(pages.one_task), name="task"),
            Route("/contention", visitors.page(pages.contention), name="contention"),
            Route("/dead", visitors.page(pages.dead), name="dead"),
            *_acts(visitors),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        exception_handlers={
            HTTPException: _http_error,
            BackendUnavailable: _store_unavailable,
            Busy: _busy,
            Exception: _unexpected,
        },
    )
    past = HistoryView(app)
    made.state.celery = app
    made.state.zone = app.timezone
    made.state.show_args = show_args
    made.state.past = past
    made.state.store = _name_of(runtime(app).settings.url)
    made.state.snapshot = Shared(partial(Snapshot.of, app, pages.KEYS))
    made.state.dead = Shared(partial(DeadLetterList.of, app, ROWS))
    made.state.answers = Answers(partial(explain, app))
    made.state.unique = Shared(partial(LivingList.of, app, ROWS))
    made.state.tally = Shared(past.of_the_last_hour, GOOD_FOR)
    return SecurityHeaders(made)


def _acts(visitors: Visitors) -> list[Route]:
    """Each has a page that asks, and an address that a form on it is sent to."""
    routes: list[Route] = []
    for name in ACTIONS:
        ask, act = partial(pages.ask, name=name), partial(pages.act, name=name)
        routes += [
            Route(f"/{name}", visitors.confirmation(ask), name=f"ask_{name}"),
            Route(f"/{name}", visitors.act(act), methods=["POST"], name=name),
        ]
    return routes


def _name_of(url: str) -> str:
    """What a visitor is told of the store: no login, and of a file no folder."""
    servers, parts = servers_of(url)
    path = parts.path if servers else f"/…/{parts.path.rpartition('/')[2]}"
    return f"{parts.scheme}://{servers.rpartition('@')[2]}{path}"


def _nobody(_request: object) -> bool:
    return False


def _http_error(request: Request, exc: Exception) -> Response:
    """What the site itself says, and its router."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    detail = exc.detail if isinstance(exc, HTTPException) else ""
    page = "sign_in.html" if status == 401 else "trouble.html"
    return show(request, page, status, title=_TITLES.get(status, "Refused"), detail=detail)


def _store_unavailable(request: Request, exc: Exception) -> Response:
    """What is shown already stays, and is old; a page that was asked for now is asked for again."""
    is_order = request.method == "POST"
    unsure = ". It is not known whether it was done: check before you repeat it"
    title, detail = "The lock store does not answer", f"{exc}{unsure if is_order else ''}"
    response = show(request, "trouble.html", 503, title=title, detail=detail)
    if not is_order:
        response.headers["refresh"] = ASK_AGAIN
    return response


def _busy(request: Request, _exc: Exception) -> Response:
    """The browser asks again by itself."""
    title, detail = "Many ask at once", "This page asks after two tasks at a time, and tries again."
    response = show(request, "trouble.html", 503, title=title, detail=detail)
    response.headers["refresh"] = ASK_AGAIN
    return response


def _unexpected(request: Request, _exc: Exception) -> Response:
    """A defect; the server writes it to its log."""
    title = "This page has failed"
    return show(request, "trouble.html", 500, title=title, detail="The log of the page says why.")
