"""``python -m tests.services.parker url [synchronous]``: parks until it is killed, and says what.

What it has said, one task a line, it would by then have acknowledged to the broker. A store on
SQLite may be told to be less careful than it is.
"""

from __future__ import annotations

import itertools
import sys

from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.testing.contract.words import claim, park, running

PREFIX = "cut"


def main(url: str, synchronous: str = "") -> None:
    backend = open_backend(url, BackendOptions(prefix=PREFIX))
    running(backend.enter(claim("holder")))
    if synchronous:
        backend._file._connection.execute(f"PRAGMA synchronous={synchronous}")  # type: ignore[attr-defined]
    for number in itertools.count():
        park(backend, f"task {number}")
        print(f"task {number}", flush=True)  # noqa: T201


if __name__ == "__main__":
    main(*sys.argv[1:])
