"""A token is exchanged for a session, by the link that was printed or by a form, and is not kept.

The link leads on at once, so the token stays neither in the address nor in a list of links.
"""

from __future__ import annotations

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from celery_dlock.web.rendering import link, show
from celery_dlock.web.sessions import SignIn
from celery_dlock.web.visitors import form, keep


def sign_in_routes(sign_in: SignIn | None) -> list[Route]:
    """The only pages that anybody may see; there are none where nobody signs in."""
    if sign_in is None:
        return []

    async def sign_in_page(request: Request) -> Response:
        if "token" in request.query_params:
            return _opened(sign_in, request, request.query_params["token"])
        return await run_in_threadpool(show, request, "sign_in.html", title="Sign in", detail="")

    async def sent(request: Request) -> Response:
        return _opened(sign_in, request, (await form(request)).get("token", ""))

    return [
        Route("/sign-in", sign_in_page, name="sign_in"),
        Route("/sign-in", sent, methods=["POST"], name="signed_in"),
    ]


def _opened(sign_in: SignIn, request: Request, token: str) -> Response:
    session = sign_in.open(token.strip())
    if session is None:
        raise HTTPException(401, "that is not the token of this page")
    response = RedirectResponse(link(request, "held"), 303)
    keep(request, response, session)
    return response
