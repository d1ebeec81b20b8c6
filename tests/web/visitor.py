"""A browser's part without a browser: requests to a site in this process, and its cookies."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
from starlette.types import ASGIApp


class Visitor:
    """Follows no link by itself. An error of the site is a response, as behind a server."""

    def __init__(self, site: ASGIApp, at: str) -> None:
        transport = httpx.ASGITransport(site, raise_app_exceptions=False)
        self._client = httpx.AsyncClient(transport=transport, base_url=at)
        self.headers = self._client.headers
        self.cookies = self._client.cookies

    def request(self, method: str, address: str, **options: Any) -> httpx.Response:
        return asyncio.run(self._client.request(method, address, **options))

    def get(self, address: str, **options: Any) -> httpx.Response:
        return self.request("GET", address, **options)

    def post(self, address: str, **options: Any) -> httpx.Response:
        return self.request("POST", address, **options)
