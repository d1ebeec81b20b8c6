"""Each database through each library: the parameters of the contract."""

from __future__ import annotations

import pytest

SERVERS = ("sqlite", "postgresql", "mariadb")
LIBRARIES = ("driver", "connection", "session", "django")

#: Drivers beside those that the libraries are tested with.
OTHERS = (("postgresql", "psycopg2"), ("mariadb", "mysqlclient"))


def servers(*names: str) -> list[object]:
    """Parameters, marked with the server that they need."""
    return [pytest.param(name, marks=_marks(name)) for name in names or SERVERS]


def faces(*libraries: str) -> list[object]:
    """Pairs of a server and a library; every driver is one."""
    pairs = [(server, library) for server in SERVERS for library in libraries or LIBRARIES]
    return [
        pytest.param((server, library), id=f"{server}-{library}", marks=_marks(server))
        for server, library in (*pairs, *OTHERS)
    ]


def _marks(server: str) -> list[pytest.MarkDecorator]:
    return [] if server == "sqlite" else [pytest.mark.server(server)]
