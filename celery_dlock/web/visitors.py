"""Who may see the pages, and who may act: whoever has the token, or as the surrounding site says.

Acting takes more: a POST that this site's own form sent, in the session that the form was made for.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from hashlib import blake2s
from inspect import isawaitable
from urllib.parse import parse_qsl, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from celery_dlock.web.sessions import SignIn, equal, form_secret, new_session

#: Asked about each request; it may be a coroutine function. Only ``True`` is a yes.
Allowed = Callable[[Request], bool | Awaitable[bool]]
Page = Callable[[Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]

#: Bytes in a form of this site at most, which sends a secret.
LARGEST_FORM = 4096

READ_ONLY = "this page is read-only"


@dataclass(frozen=True, slots=True)
class Visitors:
    """Those with a session of *sign_in*, or without one those that *allowed* lets in."""

    sign_in: SignIn | None
    allowed: Allowed
    writable: bool | Allowed

    def page(self, page: Page) -> Endpoint:
        """*page* for those that may see it; it runs in a thread."""

        async def seen(request: Request) -> Response:
            await self._let_in(request)
            return await run_in_threadpool(page, request)

        return seen

    def confirmation(self, page: Page) -> Endpoint:
        """*page*, which asks before it acts, for those that may act; it has a secret to send."""

        async def asked(request: Request) -> Response:
            await self._let_in(request)
            _demand(request.state.dlock_may_act, READ_ONLY)
            known = request.cookies.get(cookie(request), "")
            session = known if self.sign_in or len(known) >= len(new_session()) else new_session()
            request.state.dlock_secret = form_secret(session)
            response = await run_in_threadpool(page, request)
            if session != known:
                keep(request, response, session)
            return response

        return asked

    def act(self, act: Page) -> Endpoint:
        """*act* for those that may, if it was sent by a form that was made for them."""

        async def sent(request: Request) -> Response:
            await self._let_in(request)
            _demand(request.state.dlock_may_act, READ_ONLY)
            fields = await form(request)
            session = request.cookies.get(cookie(request), "")
            own = len(session) >= len(new_session())
            own = own and equal(form_secret(session), fields.get("secret", ""))
            _demand(own, "this form was not made for your session: go back, load it anew")
            return await run_in_threadpool(act, request)

        return sent

    async def _let_in(self, request: Request) -> None:
        """Raise what is told to a visitor who may not see; and note whether this one may act."""
        if self.sign_in is not None:
            if not self.sign_in.knows(request.cookies.get(cookie(request), "")):
                raise HTTPException(401, "sign in with the token of this page")
        elif not await _says_yes(self.allowed, request):
            raise HTTPException(403, "you may not see this page")
        writable = self.writable
        may_act = writable if isinstance(writable, bool) else await _says_yes(writable, request)
        request.state.dlock_may_act = may_act


async def form(request: Request) -> Mapping[str, str]:
    """The fields of a form that a page of this very origin has sent."""
    origin = urlsplit(request.headers.get("origin", "")).netloc
    own = origin != "" and equal(request.headers.get("host", ""), origin)
    _demand(own, "this was not sent by a page of this site")
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > LARGEST_FORM:
            raise HTTPException(413, "this form is too large")
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError as exc:
        raise HTTPException(400, "this is no form") from exc


def cookie(request: Request) -> str:
    """Its name: sites on one host share their cookies, whatever their ports and paths."""
    at = f"{request.url.scheme}:{request.url.port}{request.scope.get('root_path', '')}"
    return f"dlock_{blake2s(at.encode(), digest_size=6).hexdigest()}"


def keep(request: Request, response: Response, session: str) -> None:
    """Have the browser send *session* from now on, to this site and from it only."""
    response.set_cookie(
        cookie(request),
        session,
        path=request.scope.get("root_path") or "/",
        secure=request.url.scheme == "https",
        httponly=True,
        samesite="strict",
    )


def _demand(granted: bool, reason: str) -> None:
    if not granted:
        raise HTTPException(403, reason)


async def _says_yes(allowed: Allowed, request: Request) -> bool:
    """A coroutine function is awaited; another one may take its time, in a thread."""
    answer = await run_in_threadpool(allowed, request)
    return (await answer if isawaitable(answer) else answer) is True
