"""Who did what by the page: a line in the log for each, whatever came of it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from hashlib import sha256

from starlette.requests import Request

from celery_dlock.web.visitors import cookie

logger = logging.getLogger("celery_dlock")


def done(request: Request, act: Callable[[], bool], what: str, *about: object) -> bool:
    """What *act* returns, which says whether it did *what*, with *about* in its places.

    It is a warning, so that it is seen where nobody has set up logging.
    """
    came_of_it = "nobody knows whether it was done"
    try:
        did = act()
        came_of_it = "done" if did else "there was nothing to do"
        return did
    finally:
        logger.warning(f"%s asked the page to {what}: %s", _who(request), *about, came_of_it)


def _who(request: Request) -> str:
    """As the surrounding site says, or by the session, of which no line tells the secret."""
    host = request.client.host if request.client else "an unknown host"
    user = request.scope.get("user")
    name = str(getattr(user, "display_name", user) or "")
    session = sha256(request.cookies.get(cookie(request), "").encode()).hexdigest()[:8]
    return f"{name!r} at {host}" if name else f"session {session} at {host}"
