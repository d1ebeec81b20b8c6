"""A database of a test's own on a server that a whole run shares."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import create_engine, make_url, text

#: What SQLAlchemy is to take, where it would take another driver by itself.
DRIVERS = {"postgresql": "postgresql+psycopg", "mysql": "mysql+pymysql"}


@contextmanager
def own_database(server_url: str) -> Iterator[str]:
    """The URL of an empty database, as SQLAlchemy takes it; it is dropped at the end."""
    server = make_url(server_url)
    server = server.set(drivername=DRIVERS.get(server.drivername, server.drivername))
    name = f"test_{uuid.uuid4().hex}"
    engine = create_engine(server, isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        connection.execute(text(f"CREATE DATABASE {name}"))
    try:
        yield server.set(database=name).render_as_string(hide_password=False)
    finally:
        force = " WITH (FORCE)" if server.get_backend_name() == "postgresql" else ""
        with engine.connect() as connection:
            connection.execute(text(f"DROP DATABASE {name}{force}"))
        engine.dispose()
