"""What every response says to the browser, and which names of this host a request may use.

The names matter on loopback: a page of another site, whose name suddenly leads to 127.0.0.1, could
read everything here that asks for no token (DNS rebinding).
"""

from __future__ import annotations

from collections.abc import Collection
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

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
            refused = PlainTextResponse("this page does not go by that name", 421)
            await SecurityHeaders(refused)(scope, receive, send)
            return
        await self.app(scope, receive, send)


def _host(headers: Headers) -> str | None:
    hosts = headers.getlist("host")
    try:
        return urlsplit(f"//{hosts[0]}").hostname if len(hosts) == 1 else None
    except ValueError:
        return None
