"""A message as it waits in the store: complete, and describing itself.

The body stays in the bytes it was published in, so nothing is decoded, nothing is encoded again,
a signature still fits, and what ``accept_content`` refuses stays refused. Before it stands a line
of JSON, whatever the serializer of the message.

Headers and properties carry more than JSON knows: bytes, instants, decimals. Such a value is
written as an object with a member ``!`` that names its kind. So is a publisher's own object that
has such a member, or names that are no text: nothing a publisher says is taken for ours.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Self
from uuid import UUID

from celery.exceptions import SoftTimeLimitExceeded
from kombu.serialization import dumps

from celery_dlock.core.state import task_id_of
from celery_dlock.errors import DLockError
from celery_dlock.messages.headers import HISTORY

SCHEMA = 1

#: What asks the broker to deliver a message later: Amazon SQS and PGMQ, and in a header the plugin
#: of RabbitMQ for delayed messages.
_DELAYS = ("DelaySeconds", "delay_seconds")
_DELAY_HEADER = "x-delay"

#: Properties of one publish, not to be said again when the message is woken.
_OF_ONE_PUBLISH = frozenset(
    {
        # RabbitMQ, which refuses a user that is not that of the connection, and MongoDB.
        *("expiration", "user_id"),
        # Amazon SQS, which drops an id that it has seen within five minutes, and PGMQ.
        *("MessageDeduplicationId", *_DELAYS),
    }
)

#: Headers with which RabbitMQ delivers one publish to other queues, too, or later.
_HEADERS_OF_ONE_PUBLISH = frozenset({"CC", "BCC", _DELAY_HEADER})

#: What Celery hands a producer beside the properties of the message, or for one publish.
_NO_PROPERTIES = frozenset(
    {
        *("exchange", "routing_key", "serializer", "compression", "headers", "declare"),
        *("content_type", "content_encoding", "mandatory", "immediate"),
        *("retry", "retry_policy", "timeout", "confirm_timeout"),
        *_OF_ONE_PUBLISH,
    }
)

#: Of one delivery, of one broker's way to it, or said beside the properties.
_OF_THE_DELIVERY = frozenset(
    {
        *("content_type", "content_encoding", "application_headers", "timestamp"),
        *("delivery_info", "delivery_tag", "body_encoding"),
        *_OF_ONE_PUBLISH,
    }
)


def is_delayed(options: Mapping[str, Any]) -> bool:
    """Whether a producer's *options* ask the broker to deliver the message later."""
    return bool(any(map(options.get, _DELAYS)) or (options.get("headers") or {}).get(_DELAY_HEADER))


class Undecodable(DLockError):
    """What lies in the store is no message."""


class OfAnotherVersion(DLockError):
    """It is a message that a later version of the library can read, and this one cannot."""


@dataclass(frozen=True, slots=True)
class ParkedMessage:
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
            headers={
                name: value
                for name, value in delivery["headers"].items()
                if name not in _HEADERS_OF_ONE_PUBLISH
            },
            properties={
                name: value
                for name, value in delivery["properties"].items()
                if name not in _OF_THE_DELIVERY
            },
            body=delivery["body"],
        )

    @classmethod
    def of_publish(
        cls, broker: str, key: str, task: str, body: Any, options: Mapping[str, Any]
    ) -> Self:
        """The message that a producer is given as *body* and *options*."""
        serialized: Any = dumps(body, serializer=options.get("serializer"))  # type: ignore[no-untyped-call]
        content_type, content_encoding, data = serialized
        compression = options.get("compression")
        exchange = options.get("exchange")
        return cls(
            broker=broker,
            key=key,
            task=task,
            exchange=getattr(exchange, "name", exchange) or "",
            routing_key=options.get("routing_key") or "",
            content_type=content_type,
            content_encoding=content_encoding,
            headers={**options["headers"], **({"compression": compression} if compression else {})},
            properties={
                name: value
                for name, value in options.items()
                if name not in _NO_PROPERTIES and value is not None
            },
            body=data if isinstance(data, bytes) else data.encode(),
        )

    def encode(self, headers: Mapping[str, Any]) -> bytes:
        """As the store keeps it, with *headers* on top of its own.

        Raises :exc:`TypeError` for what has no text of its own.
        """
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
        line = json.dumps(_written(frame), separators=(",", ":"))
        return b"%s\n%s" % (line.encode(), self.body)

    @classmethod
    def decode(cls, key: str, task: str, message: bytes) -> Self:
        """What :meth:`encode` was given, as the message of *task*, which the store keeps it for.

        That is another than it was published as, where it has replaced a message of that one.
        Raises :exc:`Undecodable` for anything else.
        """
        text, line_end, body = message.partition(b"\n")
        if not line_end:  # published without a body it would end every worker that receives it
            raise Undecodable("the message has no body")
        try:
            frame = _of_this_version(json.loads(text, object_hook=_read))
            parts = {name: _part(frame, name, kind) for name, kind in _PARTS.items()}
            entry = cls(key=key, body=body, **parts)
            return entry if entry.task == task else entry._of_task(task)
        except (OfAnotherVersion, SoftTimeLimitExceeded):
            raise
        except Exception as exc:  # whatever it is, it must not stand at the head of its key
            raise Undecodable(f"the message cannot be read: {exc!r}") from exc

    def _of_task(self, task: str) -> Self:
        """The same under the identity of *task*, wherever Celery or we say whose it is."""
        was, becomes = task_id_of(self.task), task_id_of(task)
        headers, properties = dict(self.headers), dict(self.properties)
        for names, name in ((headers, "id"), (headers, "root_id"), (properties, "correlation_id")):
            if names.get(name) == was:
                names[name] = becomes
        past = headers.get(HISTORY)
        if isinstance(past, dict):
            headers[HISTORY] = {**past, "task": task}
        return replace(self, task=task, headers=headers, properties=properties)


_PARTS: Mapping[str, Any] = {
    **dict.fromkeys(("broker", "task", "exchange", "routing_key"), str),
    **dict.fromkeys(("content_type", "content_encoding"), str | None),
    **dict.fromkeys(("headers", "properties"), dict),
}


def _of_this_version(frame: Any) -> Any:
    if frame["schema"] != SCHEMA:
        raise OfAnotherVersion(f"the message has schema {frame['schema']}, this is {SCHEMA}")
    return frame


def _part(frame: Mapping[str, Any], name: str, kind: Any) -> Any:
    part = frame[name]
    names: Any = part if isinstance(part, dict) else ()
    if not isinstance(part, kind) or not all(isinstance(member, str) for member in names):
        raise TypeError(f"{name} is a {type(part).__name__}")
    return part


# The line of JSON.

_KIND, _VALUE = "!", "="

#: Nearly all that headers hold; every locked task that may have to wait is written once.
_AS_THEY_ARE = frozenset({type(None), bool, int, float, str})

#: A kind, its name, and how it is written and read. A datetime is a date, too, and comes first.
_KINDS: tuple[tuple[type[Any], str, Callable[[Any], Any], Callable[[Any], Any]], ...] = (
    (bytes, "bytes", lambda value: b64encode(value).decode(), b64decode),
    (tuple, "tuple", lambda value: [_written(item) for item in value], tuple),
    (datetime, "datetime", datetime.isoformat, datetime.fromisoformat),
    (date, "date", date.isoformat, date.fromisoformat),
    (time, "time", time.isoformat, time.fromisoformat),
    (Decimal, "decimal", str, Decimal),
    (UUID, "uuid", str, UUID),
)
_READ: Mapping[str, Callable[[Any], Any]] = {
    "dict": dict,
    **{name: read for _, name, _, read in _KINDS},
}


def _written(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, list):
        return [_written(item) for item in value]
    if isinstance(value, Mapping):
        return _object(value)
    if isinstance(value, (bytearray, memoryview)):
        value = bytes(value)
    for kind, name, write, _ in _KINDS:
        if isinstance(value, kind):
            return {_KIND: name, _VALUE: write(value)}
    raise TypeError(f"a message that waits in the lock store cannot carry a {type(value).__name__}")


def _object(value: Mapping[Any, Any]) -> dict[str, Any]:
    if _KIND not in value and {str}.issuperset(map(type, value)):
        return {
            name: item if type(item) in _AS_THEY_ARE else _written(item)
            for name, item in value.items()
        }
    return {
        _KIND: "dict",
        _VALUE: [[_written(name), _written(item)] for name, item in value.items()],
    }


def _read(written: dict[str, Any]) -> Any:
    return _READ[written[_KIND]](written[_VALUE]) if _KIND in written else written
