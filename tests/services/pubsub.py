"""A broker in memory whose queues get only what is bound to them, as Google Pub/Sub's do.

kombu's own transport for it raises the same errors; it needs Google's client, and an account.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

from typing import Any

from kombu.transport import memory


class Channel(memory.Channel):
    """Knows the queues that were bound over it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._bound: set[str] = set()

    def queue_bind(self, queue: str, exchange: str = "", *args: Any, **options: Any) -> None:
        super().queue_bind(queue, exchange, *args, **options)
        self._bound.add(queue)

    def _put(self, queue: str, *args: Any, **options: Any) -> None:
        if queue not in self._bound:
            raise KeyError(queue)
        super()._put(queue, *args, **options)

    def _get(self, queue: str, timeout: Any = None) -> Any:
        if queue not in self._bound:
            raise KeyError(queue)
        return super()._get(queue, timeout)


class Transport(memory.Transport):
    """Each connection has to bind its queues anew."""

    Channel = Channel
    driver_type = "gcpubsub"
