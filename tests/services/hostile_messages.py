"""Task messages of which something was changed: a header, a property, the body, or its bytes.

Each comes from a random number and is the same in every run. What ends a worker without locks, too,
is Celery's own affair and left out: see ``_ENDS_A_PLAIN_WORKER``.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from celery import Celery

from celery_dlock.messages.headers import DELIVERY, HISTORY, History
from celery_dlock.messages.unique import UNIQUE
from tests.services.nonsense import ODD

#: What Celery reads in the worker's loop without a guard of its own, as headers or in a body of
#: message protocol 1: another type there, or nothing, ends a worker that has no locks, too.
_ENDS_A_PLAIN_WORKER = frozenset(
    {"timelimit", "stamped_headers", "stamps", "groups", "eta", "expires", "id", "task"}
)

#: Names of attributes of a request, which a publisher may give to headers.
_ATTRIBUTES = ("called_directly", "headers", "is_eager", "hostname", "args", "dlock_execution")

#: What our headers say in a real message, and more than one of them says at once.
_OURS: Mapping[str, Mapping[str, Any]] = {
    HISTORY: {
        **History("", waits=3, since=1e9, expected=1e9, carried={"a": "b"}).header(),
        "held": 1.0,
        "key": "hot",
        "called": 1e9,
    },
    UNIQUE: {
        "name": "name",
        "until": "done",
        "ttl": 60.0,
        "stands": "stands",
        "duplicate_of": "another",
        "debounced_at": "hot",
    },
    DELIVERY: {"nonce": "forged", "body": "forged"},
}


@dataclass
class HostileMessage:
    """As a producer is given it."""

    headers: dict[str, Any]
    body: bytes
    properties: dict[str, Any] = field(default_factory=dict[str, Any])
    content_type: str = "application/json"
    content_encoding: str = "utf-8"

    def publish(self, app: Celery) -> bool:
        """Whether the broker's client could write it."""
        with app.connection_for_write() as connection:
            try:
                app.amqp.Producer(connection, auto_declare=False).publish(
                    self.body,
                    exchange="",
                    routing_key=app.conf.task_default_queue,
                    headers=self.headers,
                    content_type=self.content_type,
                    content_encoding=self.content_encoding,
                    **self.properties,
                )
            except Exception:
                connection.collect()
                return False
        return True


def hostile_messages(
    app: Celery, names: Sequence[str], seed: int, number: int
) -> Iterator[HostileMessage]:
    """*number* messages for the tasks of *app* with these *names*, of both protocols in turns."""
    for at in range(number):
        random = Random(f"{seed}:{at}")
        name, protocol = names[at // 2 % len(names)], 1 + at % 2
        yield _changed(_real(app, name, protocol, random, at), protocol, random)


def honest_message(
    app: Celery, name: str, protocol: int, order: str, number: int = 0, task_id: str = ""
) -> HostileMessage:
    """One of which nothing was changed."""
    make = app.amqp.as_task_v1 if protocol == 1 else app.amqp.as_task_v2
    made = make(task_id or uuid.uuid4().hex, name, (order,), {"number": number})
    body = json.dumps(made.body).encode()
    return HostileMessage(dict(made.headers), body, dict(made.properties))


def _real(app: Celery, name: str, protocol: int, random: Random, at: int) -> HostileMessage:
    """A message as Celery makes it; half of them with headers of the library."""
    task_id = uuid.UUID(int=random.getrandbits(128)).hex
    order = random.choice(("hot", "hot", f"cold-{at}"))
    message = honest_message(app, name, protocol, order, random.choice((at, -1)), task_id)
    if random.random() < 0.5:
        past = {**_OURS[HISTORY], "task": f"{task_id}:0:0", "due": random.choice((None, 1e9))}
        terms = {**_OURS[UNIQUE], "id": task_id, "task": name}
        dropped = random.sample(sorted(terms), random.randrange(4))
        terms = {field: value for field, value in terms.items() if field not in dropped}
        ours = {HISTORY: past, UNIQUE: terms, DELIVERY: dict(_OURS[DELIVERY])}
        chosen = random.sample(sorted(ours), random.randrange(1, 4))
        message.headers |= {header: ours[header] for header in chosen}
    return message


def _changed(message: HostileMessage, protocol: int, random: Random) -> HostileMessage:
    changes = [_change_header, _change_ours, _add_header, _change_body, _change_property]
    if protocol == 1:
        changes = [*changes, _change_body, _change_body]
    for _ in range(random.choice((0, 1, 1, 2, 3))):
        random.choice(changes)(message, random)
    if random.random() < 0.1:
        _spoil(message, random)
    return message


def _change_header(message: HostileMessage, random: Random) -> None:
    names = sorted(message.headers.keys() - _ENDS_A_PLAIN_WORKER)
    if names:
        _change(message.headers, random.choice(names), random)


def _change_ours(message: HostileMessage, random: Random) -> None:
    header = random.choice(sorted(_OURS))
    fields = message.headers.get(header)
    if isinstance(fields, dict) and fields:
        _change(fields, random.choice(sorted(fields)), random)
    else:
        message.headers[header] = random.choice(ODD)


def _add_header(message: HostileMessage, random: Random) -> None:
    names = (
        *_ATTRIBUTES,
        "replaced_task_nesting",
        "retries",
        "redelivered",
        "x-death",
        "compression",
    )
    message.headers[random.choice(names)] = random.choice(ODD)


def _change_property(message: HostileMessage, random: Random) -> None:
    name = random.choice(("correlation_id", "reply_to", "priority", "app_id", "type", "user"))
    message.properties[name] = random.choice(ODD)


def _change_body(message: HostileMessage, random: Random) -> None:
    body: Any = json.loads(message.body)
    if isinstance(body, dict):
        names = sorted(body.keys() - _ENDS_A_PLAIN_WORKER - {"group", "taskset"})
        _change(body, random.choice(names), random)
    else:
        body[random.randrange(3)] = random.choice(ODD)
    message.body = json.dumps(body).encode()


def _change(fields: dict[str, Any], name: str, random: Random) -> None:
    """Another value of the field *name*, or none."""
    if random.random() < 0.3:
        del fields[name]
    else:
        fields[name] = random.choice(ODD)


def _spoil(message: HostileMessage, random: Random) -> None:
    """Its bytes cannot be read, or are said to be what they are not."""
    match random.randrange(3):
        case 0:
            message.body = message.body[: random.randrange(1, len(message.body))]
        case 1:
            message.content_type = random.choice(("application/x-python-serialize", "x/y"))
        case _:
            message.content_encoding = random.choice(("utf-16", "nonsense"))
