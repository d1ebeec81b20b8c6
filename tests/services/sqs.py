"""Amazon SQS, as moto plays it: a server of our own on a free loopback port.

It is more patient than the real one: it drops no ``MessageDeduplicationId`` that it has seen within
five minutes.
"""

from __future__ import annotations

import socket
import sys
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from tests.services.ports import free_ports
from tests.services.server_process import ServerProcess


class SqsServer(ServerProcess):
    """One process of moto's server."""

    program = "moto"

    def __init__(self) -> None:
        super().__init__()
        (self.port,) = free_ports(1)

    def begin(self) -> None:
        self.run(sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(self.port))

    def answers(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self.port), timeout=1).close()
        except OSError:
            return False
        return True

    def broker(self, **options: Any) -> dict[str, Any]:
        """Celery's configuration for queues of its own here; *options* are of the transport."""
        prefix = f"{uuid.uuid4().hex[:8]}-"
        more = {"wait_time_seconds": 0, "region": "eu-west-1", "is_secure": False}
        return {
            "broker_url": f"sqs://key:secret@127.0.0.1:{self.port}",
            "broker_transport_options": {"queue_name_prefix": prefix, **more, **options},
            "worker_enable_remote_control": False,
        }


@pytest.fixture(scope="session")
def sqs_server() -> Iterator[SqsServer]:
    with SqsServer() as server:
        yield server
