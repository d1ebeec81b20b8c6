"""One event of each kind, about one task."""

from __future__ import annotations

from dataclasses import MISSING, fields

from celery_dlock.core.events import EVENTS, Acquired, Event, Released, Subject

KEY, TASK_ID, HOLDER = "order:4711", "f7ba-the-id", "who-has-it"

#: Of a field without a default, by its name or else by its type.
VALUES = {
    "keys": (KEY,),
    "tokens": (7,),
    "took": 0.004,
    "ttl": 30.0,
    "held": 1.5,
    "holder": HOLDER,
    "living": HOLDER,
    "attempt": 0,
    "outcome": "done",
    "ending": None,
    "str": KEY,
    "int": 7,
    "float": 3.0,
    "bool": True,
}


def acquired(subject: Subject, **values: float) -> Acquired:
    return Acquired(subject, (KEY,), (7,), **{"took": 0.004, "ttl": 30.0, **values})


def released(subject: Subject, held: float = 1.5) -> Released:
    return Released(subject, (KEY,), "done", held)


def about(task: str = "charge") -> Subject:
    return Subject(TASK_ID, task, "order:{order_id}")


def one_of_each(subject: Subject) -> list[Event]:
    return [one(kind, subject) for kind in EVENTS.values()]


def one(kind: type[Event], subject: Subject) -> Event:
    needed = [
        field
        for field in fields(kind)
        if field.default is MISSING and field.default_factory is MISSING
    ]
    values = {
        field.name: VALUES[field.name if field.name in VALUES else str(field.type)]
        for field in needed
        if field.name != "subject"
    }
    return kind(subject, **values)
