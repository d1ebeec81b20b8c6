"""A payment provider on loopback that honours idempotency keys, and tasks that charge by it."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from celery import Celery

from celery_dlock import LockedTask, idempotency_key
from tests.services.lab import Journal, hold_at


class Provider(ThreadingHTTPServer):
    """Keeps every *call*'s key, and makes one charge a key."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.calls: list[str] = []
        self.charges: dict[str, bytes] = {}
        self.url = f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Provider

    def do_POST(self) -> None:
        amount = self.rfile.read(int(self.headers["Content-Length"]))
        key = self.headers["Idempotency-Key"]
        self.server.calls.append(key)
        self.server.charges.setdefault(key, amount)
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        """The test looks at the calls, not at standard error."""


@contextmanager
def provider() -> Iterator[Provider]:
    with Provider() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def register_charging(app: Celery, folder: Path, options: Mapping[str, Any]) -> None:
    """Define the tasks on *app*; *options* are those of its locked tasks."""
    journal = Journal(folder / "journal")

    def charge(url: str, order: str) -> None:
        key = idempotency_key("charge")
        request = Request(url, data=b"10", headers={"Idempotency-Key": key})  # POST
        with urlopen(request, timeout=60):
            journal.write("charged")
        hold_at(folder, "charged")

    locked = {"base": LockedTask, "lock_key": "order:{order}", **options}
    app.task(name="charge locked", shared=False, **locked)(charge)
    app.task(name="charge plainly", shared=False, acks_late=True)(charge)
