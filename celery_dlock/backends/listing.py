"""What stores have in common that list their keys by name: the cursor is the last one told."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from celery_dlock.backends.base import KeyPage
from celery_dlock.core.state import Waiting

_AFTER = ">"


def last_of(cursor: str) -> str | None:
    """The name after which the page of *cursor* begins.

    Raises :exc:`ValueError` for what no page has given.
    """
    if not cursor:
        return None
    if not cursor.startswith(_AFTER):
        raise ValueError("this cursor is of no list of keys")
    cursor.encode()  # half of a character is in no name
    return cursor.removeprefix(_AFTER)


def first_of(cursor: str) -> str:
    """The least name that can be on that page, where they come in the order of their characters."""
    last = last_of(cursor)
    return "" if last is None else last + "\0"


def page(names: Sequence[str], limit: int) -> KeyPage:
    """The page that *names* begin with; they are in order, and more than *limit* if there are."""
    told = tuple(names[:limit])
    return KeyPage(told, _AFTER + told[-1] if len(names) > limit else None)


def live(head: Iterable[Waiting], now: int) -> tuple[Waiting, ...]:
    """Of the *head* of a queue those who wait, and places that are still kept."""
    return tuple(entry for entry in head if entry.lapses is None or entry.lapses > now)
