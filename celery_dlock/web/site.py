"""The page as an ASGI application: on its own for ``celery dlock web``, or inside another site.

Each request asks the store a bounded amount, in a thread. Pages are rendered here and stay true by
asking for themselves again; no script knows what a lock is.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.inspection.graves import Graves
from celery_dlock.inspection.overview import foremost
from celery_dlock.tasks.runtime import runtime
from celery_dlock.web import acts, pages, tasks, trouble
from celery_dlock.web.headers import SecurityHeaders
from celery_dlock.web.past import GOOD_FOR, Past
from celery_dlock.web.reading import ROWS, Shared
from celery_dlock.web.rendering import FOLDER
from celery_dlock.web.sessions import SignIn
from celery_dlock.web.signing_in import sign_in_routes
from celery_dlock.web.visitors import Allowed, Visitors


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

    Raises :exc:`~celery_dlock.ConfigurationError` when nobody is said to be allowed, or everybody
    to act, and for a configuration of locks that is not usable. It does not connect to the store.
    """
    if (allowed is None) == (token is None) or not callable(allowed or _nobody):
        raise ConfigurationError(
            "who may see the page? site() takes either allowed=, a function of the request, "
            "or token=, a secret to sign in with"
        )
    if writable is True and token is None:
        raise ConfigurationError(
            "writable=True would let everybody act who may see the page: it is for token=; beside "
            "allowed= it takes a function of the request"
        )
    runtime(app)
    sign_in = None if token is None else SignIn(token)
    visitors = Visitors(sign_in, allowed or _nobody, writable)
    made = Starlette(
        routes=[
            *sign_in_routes(sign_in),
            Route("/", visitors.page(pages.held), name="held"),
            Route("/queues", visitors.page(pages.queues), name="queues"),
            Route("/key", visitors.page(pages.one_key), name="key"),
            Route("/task", visitors.page(tasks.one_task), name="task"),
            Route("/contention", visitors.page(tasks.contention), name="contention"),
            Route("/dead", visitors.page(pages.dead), name="dead"),
            *_acts(visitors),
            Mount("/static", StaticFiles(directory=FOLDER / "static"), name="static"),
        ],
        exception_handlers={
            HTTPException: trouble.told,
            BackendUnavailable: trouble.store_is_away,
            Exception: trouble.unexpected,
        },
    )
    past = Past(app)
    made.state.celery = app
    made.state.zone = app.timezone
    made.state.show_args = show_args
    made.state.past = past
    made.state.queues = Shared(partial(foremost, app, ROWS, waiting=True))
    made.state.dead = Shared(partial(Graves.of, app, ROWS))
    made.state.tally = Shared(past.of_the_last_hour, GOOD_FOR)
    return SecurityHeaders(made)


def _acts(visitors: Visitors) -> list[Route]:
    """Each has a page that asks, and an address that a form on it is sent to."""
    found: list[Route] = []
    for name, ask, act in (
        ("release", acts.ask_release, acts.release),
        ("cancel", acts.ask_cancel, acts.cancel),
        ("replay", acts.ask_replay, acts.replay),
    ):
        found += [
            Route(f"/{name}", visitors.confirmation(ask), name=f"ask_{name}"),
            Route(f"/{name}", visitors.act(act), methods=["POST"], name=name),
        ]
    return found


def _nobody(_request: object) -> bool:
    return False
