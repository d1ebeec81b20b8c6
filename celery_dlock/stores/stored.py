"""How the values of :mod:`celery_dlock.core.state` are stored: each field by its name.

A field that has its default is left out, so a release that adds one reads what the release before
has written; that one leaves it alone. What is read is held to the types of the fields: somebody
else may have written there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from functools import cache
from typing import Any, TypeVar, cast, get_args, get_type_hints

from celery_dlock.core.plain import given
from celery_dlock.core.state import Cause, Dead, Mode
from celery_dlock.stores.unreadable import NONSENSE, cause_of, is_text

T = TypeVar("T")


def sound(record: T) -> T:
    """*record*, one of :mod:`celery_dlock.core.state`, if each field is of the type it is to be.

    Raises :exc:`TypeError`.
    """
    for name, kind in _kinds(cast("Any", type(record))):
        value = getattr(record, name)
        if not isinstance(value, kind) or (isinstance(value, str) and not is_text(value)):
            raise TypeError(f"{name} is {str(value)[:100]!r}")
    return record


def restored(kind: Callable[..., T], named: Mapping[str, Any]) -> T:
    """A sound record of *kind* from its fields, in which words of an enumeration are text.

    Raises one of ``NONSENSE``.
    """
    values = {name: named[name] for name, _ in _kinds(kind) if name in named}
    for name, word in _words(kind):
        if values.get(name) is not None:
            values[name] = word(values[name])
    return sound(kind(**values))


def restored_each(kind: Callable[..., T], rows: Iterable[Mapping[str, Any]]) -> tuple[T, ...]:
    """The same of each of *rows*."""
    return tuple(restored(kind, row) for row in rows)


def as_json(value: object) -> str:
    """*value*, which may be or contain records and sets, for :func:`restored` to read again."""
    return _encoder.encode(value)


def _plain(value: Any) -> Any:
    return sorted(cast("frozenset[str]", value)) if isinstance(value, frozenset) else given(value)


_encoder = json.JSONEncoder(separators=(",", ":"), default=_plain)


@cache
def _kinds(of: Any) -> tuple[tuple[str, Any], ...]:
    return tuple(get_type_hints(of).items())


@cache
def _words(of: Any) -> tuple[tuple[str, Callable[[Any], Any]], ...]:
    """The fields that take a word of an enumeration, and how it is read."""
    return tuple(
        (name, cause_of if kind is Cause else kind)
        for name, kinds in _kinds(of)
        for kind in get_args(kinds) or (kinds,)
        if issubclass(kind, StrEnum)
    )


def dead_or_unreadable(task: str, read: Callable[[], Dead]) -> Dead:
    """What *read* returns of the dead message of *task*, or that nothing can be read of it.

    One bad row must not hide the others. It comes first in their order.
    """
    try:
        return sound(read())
    except NONSENSE:
        return Dead(task, Mode.EXCLUSIVE, Cause.UNREADABLE, 0)
