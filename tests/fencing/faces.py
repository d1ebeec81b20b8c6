"""Each database through each library: the parameters of the contract."""

from __future__ import annotations

import pytest

SERVERS = ("sqlite", "postgresql", "mariadb")
LIBRARIES = ("driver", "connection", "session", "django")


def servers(*names: str) -> list[object]:
    """Parameters, marked with the server that they need."""
    return [pytest.param(name, marks=_marks(name)) for name in names or SERVERS]


def faces() -> list[object]:
    """Pairs of a server and a library."""
    return [
        pytest.param((server, library), id=f"{server}-{library}", marks=_marks(server))
        for server in SERVERS
        for library in LIBRARIES
    ]


def _marks(server: str) -> list[pytest.MarkDecorator]:
    return [] if server == "sqlite" else [pytest.mark.server(server)]
