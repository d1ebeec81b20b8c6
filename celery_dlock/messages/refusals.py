"""Which messages a broker refuses, and which it only does not get.

A refused message is refused again, however often it is woken; one that suffers an outage is not.
Which error says so depends on the transport of kombu. Where none is known a message is compared
with others: it is refused if it fails alone.
"""

from __future__ import annotations

import struct
from collections import Counter
from dataclasses import dataclass
from typing import Any

from amqp.exceptions import NotFound, PreconditionFailed
from kombu.exceptions import OperationalError, SerializationError
from kombu.utils.json import dumps

from celery_dlock.messages.envelope import ParkedMessage

#: What kombu and amqp raise for a message that cannot be encoded, that RabbitMQ refuses, or whose
#: exchange does not exist. Others of amqp's may be about this process, or the broker's trouble.
_BY_KOMBU = (
    NotFound,
    PreconditionFailed,
    SerializationError,
    TypeError,
    ValueError,
    LookupError,
    ArithmeticError,
    RecursionError,
    struct.error,
)

#: What the driver of another transport raises for such a message, by name: most are not installed.
_BY_DRIVER = frozenset(
    {
        "botocore.exceptions.ParamValidationError",  # Amazon SQS
        "sqlalchemy.exc.DataError",  # SQL
        "pymongo.errors.DocumentTooLarge",  # MongoDB
        "google.cloud.pubsub_v1.publisher.exceptions.MessageTooLargeError",  # Pub/Sub
        "azure.servicebus.exceptions.MessageSizeExceededError",  # Azure Service Bus
    }
)

#: The codes of Amazon SQS for a message that it does not take. Its other codes are about access,
#: keys, a missing queue or too many requests.
_BY_SQS = frozenset(
    {
        "InvalidParameterValue",  # such as one that is too large
        "InvalidParameterCombination",
        "InvalidMessageContents",
        "MissingParameter",
        "UnsupportedOperation",
    }
)

#: No queue of Amazon SQS takes more; the limit of a queue may be lower.
_SQS_TAKES = 1024 * 1024

#: A message with an unknown error is refused after so many failures if others have passed between
#: any two of them. Where every second publish fails by chance, that is one message in a million.
ALONE = 10

#: So many messages that fail are remembered.
_REMEMBERED = 10_000


def is_refusal(error: BaseException) -> bool:
    """Whether *error*, of a publish, says that the message is refused."""
    if isinstance(error, _BY_KOMBU):
        return True
    cause = _cause(error)
    names = {f"{kind.__module__}.{kind.__qualname__}" for kind in type(cause).__mro__}
    if "botocore.exceptions.ClientError" in names:
        return cause.response.get("Error", {}).get("Code") in _BY_SQS
    return not names.isdisjoint(_BY_DRIVER)


def exceeds(connection: Any, message: ParkedMessage) -> bool:
    """Whether the broker of *connection* certainly refuses *message* for its size."""
    if connection.transport.driver_type != "sqs" or "compression" in message.headers:
        return False
    encoded_twice = connection.transport_options.get("sqs_base64_encoding", True)
    headers: str = dumps(message.headers)  # type: ignore[no-untyped-call]
    size = _base64(len(message.body)) + len(headers)
    return (_base64(size) if encoded_twice else size) > _SQS_TAKES


def _base64(size: int) -> int:
    return (size + 2) // 3 * 4


def _cause(error: BaseException) -> Any:
    """What kombu takes for an error of the connection it has raised anew, as one of its own."""
    return (error.__cause__ or error) if isinstance(error, OperationalError) else error


@dataclass(frozen=True, slots=True)
class _Failures:
    """The failures of one message at one ``place``: ``passed`` is how many others had passed there
    at the last one.
    """

    place: Any
    kind: type[BaseException]
    passed: int
    times: int = 1


class Comparison:
    """The messages that one process publishes: which of them fail while others pass."""

    def __init__(self) -> None:
        self._failures: dict[Any, _Failures] = {}
        self._passed: Counter[Any] = Counter()

    def passes(self, message: Any, place: Any) -> None:
        """Note that *message* was published at *place*. If it had failed before, that was the
        broker's trouble, and may be all that others have suffered.
        """
        self._passed[place] += 1
        if message in self._failures:
            self._failures.clear()

    def fails(self, message: Any, place: Any, error: BaseException) -> bool:
        """Note that *message* failed at *place*; whether it has failed :data:`ALONE`."""
        if len(self._failures) >= _REMEMBERED:
            self._failures.clear()
        failed = _Failures(place, type(_cause(error)), self._passed[place])
        before = self._failures.get(message)
        if before is not None and (before.place, before.kind) == (failed.place, failed.kind):
            times = before.times + (before.passed < failed.passed)
            failed = _Failures(place, failed.kind, failed.passed, times)
        self._failures[message] = failed
        return failed.times >= ALONE
