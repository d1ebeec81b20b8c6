"""Linearizability: whether some order of calls that overlap explains the answers to all of them.

That is the search of Wing and Gong, with Lowe's pruning: a call takes effect just in time for an
answer to need it, and what leads to the same state with the same calls done is looked at once. All
orders are followed side by side, so what is left when none goes on is the answer that nobody can
explain. A call that nobody heard of need not have come at all: what leads to the same state with
fewer of those done can go on in every way that the other can, and stands for it.

J. Wing and C. Gong, Testing and verifying concurrent objects, 1993; G. Lowe, Testing for
linearizability, 2017.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

S = TypeVar("S")

#: So many states are looked at, which takes some ten seconds.
MOST_STATES = 50_000


class TooManyStates(Exception):
    """There are more orders than can be followed: too many calls of which nobody heard."""


@dataclass(frozen=True, slots=True)
class Call(Generic[S]):
    """*effects* are the states that it may lead to from a state, if its answer fits there.

    Times may be of any clock. Without *answered* nobody heard whether it was carried out: it takes
    effect at some time after it was made, or never.
    """

    effects: Callable[[S], Iterable[S]]
    called: int
    answered: int | None


def unexplained(calls: Sequence[Call[S]], start: S) -> int | None:
    """The place of the first call whose answer no order explains; ``None`` if one explains all.

    Raises :exc:`TooManyStates` where that cannot be said.
    """
    search = _Search(calls, start)
    for place, answered in _events(calls):
        if not answered:
            search.under_way.add(place)
        elif not search.answered(place):
            return place
    return None


def _events(calls: Sequence[Call[S]]) -> list[tuple[int, bool]]:
    """Each call and each answer in their order; of two at the same time the call comes first."""
    made = [(call.called, False, place) for place, call in enumerate(calls)]
    heard = [(c.answered, True, place) for place, c in enumerate(calls) if c.answered is not None]
    return [(place, answered) for _, answered, place in sorted(made + heard)]


class _Search:
    """What is possible: a state, by its number, and who of those under way has brought it about."""

    def __init__(self, calls: Sequence[Call[S]], start: S) -> None:
        self.under_way = set[int]()
        self._calls: Sequence[Call[Any]] = calls
        self._states: list[Any] = [start]
        self._numbers: dict[Any, int] = {start: 0}
        self._effects: dict[tuple[int, int], list[int]] = {}
        self._unheard = frozenset(n for n, call in enumerate(calls) if call.answered is None)
        self._possible = {(0, frozenset[int]())}

    def answered(self, place: int) -> bool:
        """Whether that call can have taken effect, with as many others before it as may be."""
        fewest = dict[tuple[int, frozenset[int]], list[frozenset[int]]]()
        ahead = deque(sorted(self._possible, key=lambda reached: len(reached[1])))
        self._possible = set()
        while ahead:
            state, done = ahead.popleft()  # first what has the fewest done
            unheard = done & self._unheard
            others = fewest.setdefault((state, done - unheard), [])
            if any(other <= unheard for other in others):
                continue
            others.append(unheard)
            if place in done:
                self._possible.add((state, done - {place}))
                continue
            for other in self.under_way - done:
                ahead.extend((after, done | {other}) for after in self._after(state, other))
        self.under_way.discard(place)
        return bool(self._possible)

    def _after(self, state: int, place: int) -> list[int]:
        found = self._effects.get((place, state))
        if found is None:
            call = self._calls[place]
            found = [self._number(after) for after in call.effects(self._states[state])]
            if call.answered is None and state in found:
                found.remove(state)  # as if it had never come
            self._effects[place, state] = found
        return found

    def _number(self, state: Any) -> int:
        if state not in self._numbers:
            if len(self._states) == MOST_STATES:
                raise TooManyStates
            self._numbers[state] = len(self._states)
            self._states.append(state)
        return self._numbers[state]
