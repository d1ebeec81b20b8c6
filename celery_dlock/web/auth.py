"""Who may see the pages, and who may act: whoever has the token, or as the surrounding site says.

A token is exchanged for a session, by the link that was printed or by a form, and is not kept: the
link leads on at once, so the token stays neither in the address nor in a list of links. A cookie
says when it ends and is signed with the token, so it is worth nothing after the token has changed.
Acting takes more: a POST that this site's own form sent, in the session that the form was made for.

At the end stand what every response says to the browser, and which names of this host a request may
use. The names matter on loopback: a page of another site, whose name suddenly leads to 127.0.0.1,
could read everything here that asks for no token (DNS rebinding).
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import time
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from inspect import isawaitable
from urllib.parse import parse_qsl, urlsplit

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from celery_dlock.errors import ConfigurationError
from celery_dlock.web.rendering import link, show

#: Seconds for which one stays signed in.
SESSION_SECONDS = 12 * 3600

#: Characters in a token at least.
SHORTEST_TOKEN = 16

#: Asked about each request; it may be a coroutine function. Only ``True`` is a yes.
Allowed = Callable[[Request], bool | Awaitable[bool]]
Page = Callable[[Request], Response]
Endpoint = Callable[[Request], Awaitable[Response]]

#: Bytes in a form of this site at most, which sends a secret.
LARGEST_FORM = 4096

READ_ONLY = "this page is read-only"


def new_token() -> str:
    """A secret that nobody guesses; also the cookie of a visitor whom somebody else has let in."""
    return secrets.token_urlsafe(32)


def form_secret(session: str) -> str:
    """What a form of *session* carries, and no other site can know."""
    return _sign(session.encode(), "form")


def seal(request: Request, sentence: str) -> str:
    """What a page wants before it shows a *sentence*: an address of others puts no words there.

    It is good for the session in which it was made.
    """
    session = request.cookies.get(cookie(request), "")
    secret = getattr(request.state, "dlock_secret", "") or form_secret(session)
    return _sign(secret.encode(), f"said {sentence}")


def _equal(ours: str, theirs: str) -> bool:
    """Whether they are the same, in a time that does not tell how far."""
    return hmac.compare_digest(ours.encode(), theirs.encode(errors="surrogateescape"))


class SignIn:
    """Sessions for whoever has *token*."""

    def __init__(self, token: str) -> None:
        if len(token) < SHORTEST_TOKEN:
            raise ConfigurationError(
                f"the token of the page needs {SHORTEST_TOKEN} characters or more: "
                'python -c "import secrets; print(secrets.token_urlsafe(32))" makes a good one'
            )
        self._token = token
        self._key = hashlib.sha256(b"celery_dlock.web " + token.encode()).digest()

    def open(self, token: str) -> str | None:
        """A session, if *token* is the right one."""
        if not _equal(self._token, token):
            return None
        claim = f"{secrets.token_urlsafe(24)}.{int(time.time()) + SESSION_SECONDS}"
        return f"{claim}.{_sign(self._key, claim)}"

    def knows(self, session: str) -> bool:
        """Whether *session* was opened with this token, and has not ended."""
        claim, _, signature = session.rpartition(".")
        ends = claim.rpartition(".")[2]
        return _equal(_sign(self._key, claim), signature) and time.time() < int(ends)


def _sign(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(errors="surrogateescape"), hashlib.sha256).hexdigest()


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
            sentence = request.query_params.get("said", "")
            is_ours = _equal(seal(request, sentence), request.query_params.get("seal", ""))
            is_ours = is_ours and request.cookies.get(cookie(request), "") != ""
            request.state.dlock_said = sentence if is_ours else ""
            return await run_in_threadpool(page, request)

        return seen

    def confirmation(self, page: Page) -> Endpoint:
        """*page*, which asks before it acts, for those that may act; it has a secret to send."""

        async def asked(request: Request) -> Response:
            await self._let_in(request)
            _demand(request.state.dlock_may_act, READ_ONLY)
            in_cookie = request.cookies.get(cookie(request), "")
            session = (
                in_cookie if self.sign_in or len(in_cookie) >= len(new_token()) else new_token()
            )
            request.state.dlock_secret = form_secret(session)
            response = await run_in_threadpool(page, request)
            if session != in_cookie:
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
            own = len(session) >= len(new_token())
            own = own and _equal(form_secret(session), fields.get("secret", ""))
            _demand(own, "this form was not made for your session: go back and reload it")
            request.state.dlock_form = fields
            request.state.dlock_secret = fields["secret"]
            return await run_in_threadpool(act, request)

        return sent

    async def _let_in(self, request: Request) -> None:
        """Raise what is told to a visitor who may not see; and note whether this one may act."""
        if self.sign_in is not None:
            if not self.sign_in.knows(request.cookies.get(cookie(request), "")):
                raise HTTPException(401, "")  # nobody has done anything wrong yet
        elif not await _says_yes(self.allowed, request):
            raise HTTPException(403, "you may not see this page")
        writable = self.writable
        may_act = writable if isinstance(writable, bool) else await _says_yes(writable, request)
        request.state.dlock_may_act = may_act


async def form(request: Request) -> Mapping[str, str]:
    """The fields of a form that a page of this very origin has sent."""
    _, _, origin = request.headers.get("origin", "").partition("://")
    own = origin != "" and _equal(request.headers.get("host", ""), origin)
    _demand(own, "this was not sent by a page of this site")
    body = b""
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > LARGEST_FORM:
                raise HTTPException(413, "this form is too large")
    except ClientDisconnect as exc:
        raise HTTPException(400, "this form is incomplete") from exc
    try:
        return dict(parse_qsl(body.decode(), keep_blank_values=True, max_num_fields=10))
    except ValueError as exc:
        raise HTTPException(400, "this is not a form") from exc


def cookie(request: Request) -> str:
    """Its name: sites on one host share their cookies, whatever their ports and paths."""
    at = f"{request.url.scheme}:{request.url.port}{request.scope.get('root_path', '')}"
    return f"dlock_{hashlib.blake2s(at.encode(), digest_size=6).hexdigest()}"


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


#: A referrer goes to this site only; without any, a browser would not name the origin of a form.
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class SecurityHeaders:
    """Adds them to each response; only what is a file of the site, and has a tag, is stored."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers["cache-control"] = "no-cache" if "etag" in headers else "no-store"
            await send(message)

        await self.app(scope, receive, with_headers)


class KnownHosts:
    """Refuses what was not sent to one of these *names* of the host, whatever the port."""

    def __init__(self, app: ASGIApp, names: Collection[str]) -> None:
        self.app = app
        self.names = frozenset(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] == "http" and _host(Headers(scope=scope)) not in self.names:
            refused = PlainTextResponse("this page is not served under that host name", 421)
            await SecurityHeaders(refused)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _host(headers: Headers) -> str | None:
    hosts = headers.getlist("host")
    try:
        return urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
    except ValueError:
        return None
