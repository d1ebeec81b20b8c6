"""The ways in which the tasks of a campaign take their locks, and what each promises.

``WAYS`` are the options of the tasks, for the workers. ``FEATURES`` say to the checker what may
become of a task, and in which order; it believes them and nothing of the product's code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from celery_dlock import (
    Debounce,
    FullJitter,
    Limit,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Shared,
    Unique,
)

#: Seconds for which a key of that way cools down.
COOLDOWN = 0.3

#: How many may have the key of that way, for two seconds each, over and over.
PLAN = (1, 3, 2)


def by_plan(*_: Any, **__: Any) -> int:
    """The limit of a call at this instant, for all processes."""
    return PLAN[int(time.monotonic() / 2) % len(PLAN)]


WAYS: Mapping[str, dict[str, Any]] = {
    "queued": {"lock_on_contention": Queue()},
    "slotted": {"lock_on_contention": Queue(), "lock_key": Limit("{key}", 2)},
    "rescheduled": {"lock_on_contention": Reschedule(backoff=FullJitter(base=0.1, cap=1.0))},
    "skipped": {"lock_on_contention": "skip"},
    "reading": {"lock_on_contention": Queue(), "lock_key": Shared("{key}")},
    "below": {"lock_on_contention": Queue(), "lock_key": ["{key}", Shared("tree")]},
    "pair": {"lock_on_contention": Queue(), "lock_key": ["left", "right"]},
    "limits": {
        "lock_on_contention": Queue(),
        "lock_key": [Limit("narrow", 2), Limit("wide", 3), Shared("catalog")],
    },
    "changing": {"lock_on_contention": Queue(), "lock_key": Limit("{key}", by_plan)},
    "newest": {"lock_on_contention": Replace()},
    "stopping": {"lock_on_contention": Replace(running=True)},
    "published": {"lock_on_contention": Ordered()},
    "kept": {"lock_on_contention": Queue(keep=True)},
    "reserving": {"lock_on_contention": Queue(), "lock_reserve": "retry"},
    "cooling": {
        "lock_on_contention": Queue(),
        "lock_key": Limit("{key}", 1, cooldown=COOLDOWN),
    },
    "nested": {"lock_on_contention": Queue()},
    "chained": {"lock_on_contention": Queue(), "lock_reserve": "chain"},
    "once": {"lock_on_contention": Queue(), "lock_unique": Unique(by="{key}")},
    "again": {"lock_on_contention": Queue(), "lock_unique": Unique("start", by="{key}")},
    "debounced": {"lock_unique": Debounce(delay=0.4, max_delay=1.5)},
}

#: The lock that a body takes inside.
INNER = "inner"


class Instead(StrEnum):
    """What does for a task that did not run."""

    NOTHING = "nothing"
    DURING = "a run that was under way, or came later"
    AFTER = "a run that began after the call"


class Order(StrEnum):
    """Whose turn is promised to be the first."""

    NONE = "none"
    ARRIVAL = "arrival"
    PUBLISHING = "publishing"


@dataclass(frozen=True, slots=True)
class Key:
    """Tasks that are sent for one key, and what is promised to them.

    They take ``locks``, or the one of that name. ``called``: whether a call may be answered with
    the task of another one; with ``newest`` that runs with the newest arguments. With ``stored``
    the publisher leaves the message with the store. With ``reserves`` a retry keeps the key. With
    ``chained`` each is the first of a chain of two.
    """

    name: str
    task: str
    limit: int = 1
    order: Order = Order.NONE
    weight: int = 1
    locks: tuple[str, ...] = ()
    instead: Instead = Instead.NOTHING
    called: bool = False
    newest: bool = False
    stored: bool = False
    revoked: bool = False
    reserves: bool = False
    chained: bool = False
    cooldown: float = 0.0

    @property
    def taken(self) -> tuple[str, ...]:
        return self.locks or (self.name,)

    @property
    def followed(self) -> bool:
        """Whether it matters when a task comes to the store."""
        return self.order is Order.ARRIVAL or (self.instead is Instead.AFTER and not self.called)


_ARRIVAL, _DURING, _AFTER = Order.ARRIVAL, Instead.DURING, Instead.AFTER

#: What was always there.
KEYS = (
    Key("first", "queued", order=_ARRIVAL, weight=4),
    Key("second", "queued", order=_ARRIVAL, weight=3),
    Key("third", "queued", order=_ARRIVAL, weight=2),
    Key("slots", "slotted", limit=2, weight=2),
    Key("resent", "rescheduled", weight=1),
)

#: What a mixture is drawn from; the keys of one feature come together.
FEATURES: Mapping[str, tuple[Key, ...]] = {
    "queue": KEYS[:1],
    "slots": KEYS[3:4],
    "reschedule": KEYS[4:],
    "skip": (Key("skipping", "skipped", instead=_DURING),),
    "readers": (Key("book", "reading", weight=2), Key("book", "queued")),
    "parents": (Key("tree/a", "below"), Key("tree/b", "below"), Key("tree", "queued")),
    "several keys": (Key("pair", "pair", locks=("left", "right")), Key("left", "queued")),
    "limits": (
        Key("limits", "limits", locks=("narrow", "wide", "catalog"), weight=2),
        Key("catalog", "queued"),
    ),
    "changing limit": (Key("changing", "changing", limit=max(PLAN), weight=3),),
    "replace": (Key("newest", "newest", instead=_AFTER, stored=True),),
    "replace running": (Key("stopping", "stopping", instead=_AFTER, stored=True),),
    "ordered": (
        Key(
            "published",
            "published",
            order=Order.PUBLISHING,
            stored=True,
            weight=2,
            reserves=True,
        ),
    ),
    "keep": (Key("kept", "kept", order=_ARRIVAL),),
    "reserved retries": (Key("reserved", "reserving", order=_ARRIVAL, weight=2, reserves=True),),
    "cooldown": (Key("cooling", "cooling", cooldown=COOLDOWN),),
    "lock inside": (Key("nested", "nested"), Key("nested too", "nested")),
    "chain": (Key("chained", "chained", chained=True),),
    "revoke": (Key("revoked", "queued", revoked=True),),
    "unique until done": (Key("once", "once", instead=_DURING, called=True, weight=2),),
    "unique until start": (Key("again", "again", instead=_AFTER, called=True),),
    "debounce": (
        Key("sudden", "debounced", instead=_AFTER, called=True, newest=True, stored=True),
    ),
}

#: How many may have a lock of several keys at once.
LIMITS = {"slots": 2, "narrow": 2, "wide": 3, "changing": max(PLAN)}

#: The locks that are read, too.
READ = frozenset({"book", "catalog", "tree"})
