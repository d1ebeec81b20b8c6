"""For tests: finds two locks that are nested in one order here and in the inverse order there.

Two that do so at the same time wait for each other. That hardly ever happens in a test, and it need
not: as in Linux's lockdep each order is written down when it is first seen, and the one that closes
a circle is an inversion, though nobody has waited. Locks are told apart by what their keys look
like, such as ``order:*``, and not by their keys, or each pair of orders would have to be met by
itself.

What asks once and does not wait closes no circle. Several keys of one lock are asked for in one
order, whoever asks, and a reader counts as a writer: the one that waits between two readers holds
the second one off.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any
from weakref import WeakKeyDictionary

from celery_dlock.locks.current import held_keys

#: The frames between the code that asks for a lock and this module.
_BETWEEN = frozenset({"celery", "celery_dlock", "contextlib"})


class LockOrder:
    """The nestings of locks that this process has seen in one application, and *inversions*."""

    def __init__(self) -> None:
        self.inversions: list[str] = []
        self._inside: dict[str, dict[str, str]] = {}  # the outer one, the inner one, and where
        self._patterns: Mapping[str, re.Pattern[str]] = {}
        self._tasks = 0

    def asked(self, app: Any, held: Sequence[str], keys: Iterable[str]) -> None:
        """Code that has *held* some keys until now asks for others, all together."""
        tasks = app.tasks if app.finalized or app.autofinalize else {}
        if len(tasks) != self._tasks:
            self._tasks, self._patterns = len(tasks), dict(_patterns(tasks.values()))
        for outer, inner in product(held, sorted(set(keys).difference(held))):
            self._nested(*self._named(outer, inner))

    def _named(self, outer: str, inner: str) -> tuple[str, str]:
        """Two keys that look alike are told apart by their order as texts."""
        shapes = self._shape(outer), self._shape(inner)
        if shapes[0] != shapes[1]:
            return shapes
        lesser, greater = f"{shapes[0]} (the lesser key)", f"{shapes[0]} (the greater key)"
        return (lesser, greater) if outer < inner else (greater, lesser)

    def _shape(self, key: str) -> str:
        """That of a task which locks such keys; else each part with a digit is left open."""
        for shape, pattern in self._patterns.items():
            if pattern.fullmatch(key):
                return shape
        return re.sub(r"[^:/]*\d[^:/]*", "*", key)

    def _nested(self, outer: str, inner: str) -> None:
        if inner in self._inside.get(outer, ()):
            return
        places = self._inside.setdefault(outer, {})
        places[inner] = _place()
        if not (way := self._way(inner, outer)):
            return
        inverse = (f"{to!r} inside {of!r} at {self._inside[of][to]}" for of, to in way)
        self.inversions.append(
            f"locks are nested in inverse order: {inner!r} inside {outer!r} at {places[inner]}, "
            f"and {', '.join(inverse)}. Two that meet there wait for each other: take the keys by "
            "one lock([...]), or in one order everywhere"
        )

    def _way(self, start: str, goal: str) -> list[tuple[str, str]]:
        """The fewest nestings that lead from *start* to *goal*; empty if none do."""
        outer_of = {start: ""}
        reached = [start]
        for outer in reached:
            for inner in list(self._inside.get(outer, ())):  # another thread may add to it
                if inner not in outer_of:
                    outer_of[inner] = outer
                    reached.append(inner)
        if goal not in outer_of:
            return []
        way: list[tuple[str, str]] = []
        while goal != start:
            way.insert(0, (outer_of[goal], goal))
            goal = outer_of[goal]
        return way


#: By application: what is seen in one test counts in the next.
_watched: WeakKeyDictionary[Any, LockOrder] = WeakKeyDictionary()


def watch(app: Any) -> LockOrder:
    """The order of the locks of *app*, which is watched from now on."""
    return _watched.setdefault(app, LockOrder())


#: One for each block of :func:`all_watched`.
_all: list[None] = []


@contextmanager
def all_watched() -> Iterator[Callable[[], Collection[LockOrder]]]:
    """In the block each application is watched. Gives what lists the orders of those that are."""
    _all.append(None)
    try:
        yield lambda: list(_watched.values())
    finally:
        _all.pop()


def asked(app: Any, store: object, keys: Iterable[str]) -> None:
    """The running code asks for *keys* of *store*, and waits for them."""
    if _all:
        watch(app)
    if _watched and (order := _watched.get(app)):
        order.asked(app, held_keys(store), keys)


def _patterns(tasks: Iterable[object]) -> Iterator[tuple[str, re.Pattern[str]]]:
    """What the keys of *tasks* look like, those with the fewest fields first."""
    definitions = [getattr(task, "lock_definition", None) for task in tasks]
    shapes = {shape for one in definitions if one for shape in one.template.shapes}
    for shape in sorted(shapes, key=lambda shape: (shape.count("*"), -len(shape), shape)):
        yield shape, re.compile(re.escape(shape).replace(r"\*", "[^:/]*"))


def _place() -> str:
    frame = sys._getframe()  # noqa: SLF001  # pyright: ignore[reportPrivateUsage]
    while frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN and frame.f_back:
        frame = frame.f_back
    return f"{frame.f_code.co_filename}:{frame.f_lineno}"
