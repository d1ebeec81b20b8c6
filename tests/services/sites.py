"""A place for a lab: broker, pool, acknowledgement, and where results and locks are kept."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.services.brokers import (
    kept_in_redis,
    kept_in_sqlite,
    over_folder,
    over_quorum_queues,
    over_rabbitmq,
    over_redis,
)
from tests.services.lab import Lab

#: The server of each broker that has one; quorum is RabbitMQ with quorum queues.
SERVED_BY = {"redis": "redis", "rabbitmq": "rabbitmq", "quorum": "rabbitmq"}


@dataclass(frozen=True, slots=True)
class Site:
    """One combination. *broker* is one of ``SERVED_BY`` or filesystem, *kept* redis or sqlite."""

    broker: str
    pool: str
    late: bool
    kept: str

    def param(self, *more: Any, marks: Any = ()) -> Any:
        """A row of parameters with this in front, with its name and its servers' markers."""
        servers = sorted({SERVED_BY.get(self.broker, ""), self.kept} & {"redis", "rabbitmq"})
        name = f"{self.broker}-{self.pool}-{'late' if self.late else 'early'}-{self.kept}"
        marks = [*marks, *(pytest.mark.server(server) for server in servers)]
        return pytest.param(self, *more, marks=marks, id=name)

    def lab(self, request: pytest.FixtureRequest, folder: Path, **lock: Any) -> Lab:
        """A lab in *folder* on the servers of the whole run; *lock* are options of its tasks."""
        match self.broker:
            case "redis":
                broker = over_redis(request.getfixturevalue("redis_server").port)
            case "rabbitmq":
                broker = over_rabbitmq(request.getfixturevalue("rabbitmq_server").url)
            case "quorum":
                broker = over_quorum_queues(request.getfixturevalue("rabbitmq_server").url)
            case _:
                broker = over_folder(folder)
        if self.kept == "redis":
            kept = kept_in_redis(request.getfixturevalue("redis_server").port)
        else:
            kept = kept_in_sqlite(folder)
        config = {"celery": {**broker, **kept}, "lock": lock, "task": {"acks_late": self.late}}
        return Lab(folder, config)
