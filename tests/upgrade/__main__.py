"""``python -m tests.upgrade``: record what this version leaves in a store for the next one.

To be run before a release, with the records committed; ``test_upgrade.py`` reads them.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from celery_dlock.testing.project import ManualClock
from tests.contract.memory_rows import RowsBackend
from tests.services.postgresql import PostgresqlServer
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.upgrade import stored
from tests.upgrade.story import publish, tell


def _record(store: str, what: Any) -> None:
    stored.RECORDS.mkdir(exist_ok=True)
    (stored.RECORDS / f"{store}.json").write_text(json.dumps(what, indent=0) + "\n")


with tempfile.TemporaryDirectory() as name:
    folder = Path(name)
    with stored.sqlite(folder, clock := ManualClock()) as store:
        tell(store, clock)
    _record("sqlite", stored.read_sqlite(folder))

with tempfile.TemporaryDirectory() as name:
    publish(stored.file_of(Path(name)))
    _record("messages", stored.read_sqlite(Path(name)))

with RedisServer() as server:
    with stored.on_redis(server, clock := ManualClock()) as store:
        tell(store, clock)
    _record("redis", stored.read_redis(server))

with PostgresqlServer(require("postgresql").parent) as database:
    with stored.on_postgresql(database, clock := ManualClock()) as store:
        tell(store, clock)
    # Not what only the program of one version understands, or the reader.
    lines = database.dump("dlock").splitlines()
    _record("postgresql", [line for line in lines if line and not line.startswith(("\\", "--"))])

with stored.as_rows(clock := ManualClock()) as store:
    assert isinstance(store, RowsBackend)
    tell(store, clock)
    _record("rows", stored.read_rows(store))
