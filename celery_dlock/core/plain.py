"""What the shortcuts of stores know of a claim and of a key: whitelists.

A store answers the common operations by shortcuts, without most of the rules: a free key is taken,
the only holder leaves, a message comes behind a holder, the first who waits is next. They know the
fields that are named here, and that all others have their defaults. So a new field, with a rule of
its own, goes the general way in every store, without a line there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from functools import cache
from operator import attrgetter
from typing import Any, cast

from celery_dlock.core.state import Claim, Grant, Holder, KeyState, Outcome, Waiting, WaitMode

#: The fields that every shortcut knows, of each value that one looks at.
KNOWN: Mapping[type, frozenset[str]] = {
    Claim: frozenset(
        {"key", "task", "nonce", "ttl", "mode", "limit", "wait", "patience", "done_ttl"}
        | {"gives_up", "max_waiting", "drop_oldest", "ordered", "name", "where", "entry"}
        | {"keyset"}
    ),
    Holder: frozenset(
        {"task", "nonce", "mode", "limit", "slot", "token", "since", "expires", "name", "where"}
    ),
    Grant: frozenset(
        {"task", "mode", "limit", "parked", "woken", "due", "gives_up", "ordered", "arrived"}
    ),
    Waiting: frozenset(
        {"task", "mode", "rank", "arrived", "expires", "gives_up", "ordered", "name", "entry"}
        | {"keyset"}
    ),
    KeyState: frozenset(
        {"holders", "grants", "waiting", "parked", "first", "last", "done", "lost", "dead"}
        | {"paused"}
    ),
}

#: The ways of waiting that they know.
WAYS = frozenset({WaitMode.NOT, WaitMode.PLACE, WaitMode.LOOK, WaitMode.QUEUE})


def others(value: Any) -> dict[str, Any]:
    """The fields of *value* that shortcuts do not know, where they do not have their defaults."""
    names = KNOWN[type(value)]
    return {name: field for name, field in given(value).items() if name not in names}


def given(value: Any) -> dict[str, Any]:
    """The fields of *value* that do not have their defaults."""
    names, defaults, of = _fields(cast("Any", type(value)))
    values = zip(names, of(value), defaults, strict=True)
    return {name: field for name, field, default in values if field != default}


def is_plain(claim: Claim) -> bool:
    """Whether a shortcut may serve *claim*."""
    return claim.wait in WAYS and _UNKNOWN(claim) == _DEFAULTS


def ends_plainly(claim: Claim, outcome: Outcome) -> bool:
    """Whether a shortcut may serve *claim* as it leaves a key at which it is alone."""
    return is_plain(claim) and outcome in (Outcome.DONE, Outcome.OVER)


def is_done(claim: Claim, outcome: Outcome) -> bool:
    """Whether the store remembers that the task of such a *claim* is done."""
    return outcome is Outcome.DONE and claim.done_ttl > 0


@cache
def known_fields(kind: Any) -> tuple[str, ...]:
    """The fields of *kind* that shortcuts know, in their order; of another value all."""
    names = tuple(field.name for field in fields(kind))
    return tuple(name for name in names if name in KNOWN.get(kind, names))


@cache
def _fields(kind: Any) -> tuple[tuple[str, ...], tuple[Any, ...], Callable[[Any], tuple[Any, ...]]]:
    """The names of the fields, their defaults, and what reads them."""
    names = tuple(field.name for field in fields(kind))
    return names, tuple(field.default for field in fields(kind)), attrgetter(*names)


@cache
def _unknown(kind: Any) -> tuple[tuple[str, Any], ...]:
    unknown = (field for field in fields(kind) if field.name not in KNOWN[kind])
    return tuple((field.name, field.default) for field in unknown)


_UNKNOWN = attrgetter(*(name for name, _ in _unknown(Claim)))
_DEFAULTS = tuple(default for _, default in _unknown(Claim))
