"""A message as it waits in the store: complete, and describing itself.

The body stays in the bytes it was published in, so nothing is decoded, nothing is encoded again,
a signature still fits, and what ``accept_content`` refuses stays refused. Before it stands a line
of JSON, whatever the serializer of the message.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kombu.utils.json import dumps, loads

from celery_dlock.errors import DLockError

SCHEMA = 1

#: Of one delivery, of one broker's way to it, or said beside the properties; not to be said again.
#: RabbitMQ refuses a ``user_id`` that is not that of the connection.
_OF_THE_DELIVERY = frozenset(
    {
        "content_type",
        "content_encoding",
        "user_id",
        "delivery_info",
        "delivery_tag",
        "body_encoding",
        "expiration",
        "timestamp",
        "application_headers",
    }
)


class Undecodable(DLockError):
    """What lies in the store is no message."""


class OfAnotherVersion(DLockError):
    """It is a message that a later version of the library can read, and this one cannot."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One parked message, and the ``broker`` that it belongs to."""

    broker: str
    key: str
    task: str
    exchange: str
    routing_key: str
    content_type: str
    content_encoding: str
    headers: Mapping[str, Any]
    properties: Mapping[str, Any]
    body: bytes

    @classmethod
    def of_delivery(cls, broker: str, task: str, delivery: Mapping[str, Any]) -> Self:
        """The message of *delivery*, as ``LockedRequest`` notes it; it knows its key when read."""
        return cls(
            broker=broker,
            key="",
            task=task,
            exchange=delivery["exchange"] or "",
            routing_key=delivery["routing_key"] or "",
            content_type=delivery["content_type"],
            content_encoding=delivery["content_encoding"],
            headers=delivery["headers"],
            properties={
                name: value
                for name, value in delivery["properties"].items()
                if name not in _OF_THE_DELIVERY
            },
            body=delivery["body"],
        )

    def encode(self, headers: Mapping[str, Any]) -> bytes:
        """As the store keeps it, with *headers* on top of its own."""
        frame = {
            "schema": SCHEMA,
            "broker": self.broker,
            "task": self.task,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "headers": {**self.headers, **headers},
            "properties": dict(self.properties),
        }
        text: str = dumps(frame, separators=(",", ":"))  # type: ignore[no-untyped-call]
        return b"%s\n%s" % (text.encode(), self.body)

    @classmethod
    def decode(cls, key: str, message: bytes) -> Self:
        """What :meth:`encode` was given. Raises :exc:`Undecodable` for anything else."""
        text, line_end, body = message.partition(b"\n")
        if not line_end:  # published without a body it would end every worker that receives it
            raise Undecodable("the message has no body")
        try:
            frame = loads(text)  # type: ignore[no-untyped-call]
            if frame["schema"] != SCHEMA:
                raise OfAnotherVersion(
                    f"the message has schema {frame['schema']}, this is {SCHEMA}"
                )
            return cls(
                broker=frame["broker"],
                key=key,
                task=frame["task"],
                exchange=frame["exchange"],
                routing_key=frame["routing_key"],
                content_type=frame["content_type"],
                content_encoding=frame["content_encoding"],
                headers=frame["headers"],
                properties=frame["properties"],
                body=body,
            )
        except (ValueError, KeyError, TypeError) as exc:
            raise Undecodable(f"the message cannot be read: {exc!r}") from exc
