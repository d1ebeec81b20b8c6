"""What a visitor is told when there is no page to show; never a traceback, which the log has."""

from __future__ import annotations

import logging

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from celery_dlock.web.rendering import show

logger = logging.getLogger("celery_dlock")

#: After so many seconds a browser asks again for a page that it did not get.
ASK_AGAIN = "5"

_TITLES = {
    400: "This address makes no sense",
    401: "Sign in",
    403: "Not allowed",
    404: "There is no such page",
    405: "This page takes no orders",
    409: "Nothing was done",
}


def told(request: Request, exc: Exception) -> Response:
    """What the site itself says, and its router."""
    status = exc.status_code if isinstance(exc, HTTPException) else 500
    detail = exc.detail if isinstance(exc, HTTPException) else ""
    page = "sign_in.html" if status == 401 else "trouble.html"
    return show(request, page, status, title=_TITLES.get(status, "Refused"), detail=detail)


def store_is_away(request: Request, exc: Exception) -> Response:
    """What is shown already stays, and is old; a page that was asked for now is asked for again."""
    is_order = request.method == "POST"
    unsure = ". Whether it was done is not known: look before you repeat it"
    title, detail = "The lock store does not answer", f"{exc}{unsure if is_order else ''}"
    response = show(request, "trouble.html", 503, title=title, detail=detail)
    if not is_order:
        response.headers["refresh"] = ASK_AGAIN
    return response


def unexpected(request: Request, _exc: Exception) -> Response:
    """A defect; the server writes it to its log."""
    title = "This page has failed"
    return show(request, "trouble.html", 500, title=title, detail="The log of the page says why.")
