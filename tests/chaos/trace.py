"""All that the processes of a round asked of the store, and what they heard: a file of each.

The call is written before the store is asked, so that of a process that is killed meanwhile its
last call is known. When and in which order the store did it is in the store itself: `ledger.py`.
"""

from __future__ import annotations

import itertools
import os
import pickle
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from celery_dlock.core.operations import Enter, Leave, Operation, Postpone, Renew


@dataclass(frozen=True, slots=True)
class Sweep:
    """All that is due is reaped."""

    limit: int = 100


@dataclass(frozen=True, slots=True)
class Swap:
    """What stands under a name is changed, if it is what the caller believes."""

    name: str
    was: bytes | None
    becomes: bytes | None
    stays: int


What = Operation[Any] | Sweep | Swap
#: A process, and the number of a call of it.
CallId = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """By which instant a call went that changed nothing, and whose rows were not there."""

    now: int
    gone: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Spoken:
    """*what* was asked for; of what was not *answered* nobody knows whether it was done.

    *seen* is of a call that left nothing in the store's ledger, for it changed nothing. What is
    *lost* was a part of it of which it heard nothing itself.
    """

    what: What
    called: float
    answered: float | None = None
    answer: Any = None
    call: CallId = (0, 0)
    seen: Seen | None = None
    lost: frozenset[What] = frozenset()

    @property
    def operation(self) -> Operation[Any]:
        """What was asked of one key."""
        assert not isinstance(self.what, Sweep | Swap)
        return self.what


@dataclass(slots=True)
class Call:
    """What a thread asks for just now; one that is *split* is done one by one."""

    id: CallId
    asked: list[What]
    split: bool
    doing: list[What]
    tries: int = 0
    attempt: Seen | None = None
    seen: dict[What, Seen] = field(default_factory=dict[What, Seen])
    lost: frozenset[What] = frozenset()

    def next(self) -> list[What]:
        """What is done next, by a store that does it one by one and asks for all at once."""
        self.tries += 1
        one_by_one = self.split and len(self.asked) > 1
        return [self.asked[self.tries - 1]] if one_by_one else self.doing


_numbers = itertools.count()


class Trace:
    """A process's calls of its store; of calls that a store makes of its own the outer one."""

    def __init__(self, folder: Path) -> None:
        self.in_scripts = False
        self._folder = folder
        self._this = threading.local()

    @property
    def under_way(self) -> Call | None:
        """This thread's call."""
        return getattr(self._this, "call", None)

    def follow(self, store: Any) -> None:
        """Write down what *store* is asked from now on."""
        for name, asked in ASKED.items():
            setattr(store, name, partial(self._call, getattr(store, name), asked))

    def _call(
        self, ask: Callable[..., Any], asked: Callable[..., list[What]], *given: Any, **named: Any
    ) -> Any:
        what = asked(*given, **named)
        outer = self.under_way
        if outer is not None:
            if outer.split:  # else what was asked for counts, not what a store makes of it
                outer.doing = what
            try:
                return ask(*given, **named)
            except Exception:  # a sweep goes on
                outer.lost |= frozenset(what)
                raise
        split = asked in (list, ASKED["sweep"])
        call = self._this.call = Call((os.getpid(), next(_numbers)), what, split, what)
        try:
            self._write(call, what)
            answer = ask(*given, **named)
            answers = answer if isinstance(answer, list) else [answer]
            pairs = zip(what, answers, strict=True)
            self._write(call, [(each, call.seen.get(one), call.lost) for one, each in pairs])
            return answer
        finally:
            self._this.call = None

    def _write(self, call: Call, what: list[Any]) -> None:
        record = pickle.dumps((call.id, time.monotonic(), what))
        with (self._folder / f"{os.getpid()}.trace").open("ab") as file:
            file.write(record)


def _one(kind: Callable[..., What]) -> Callable[..., list[What]]:
    return lambda *given, **named: [kind(*given, **named)]


#: What is followed, and as what: all that changes a key, or what stands under a name. What has a
#: short name of its own is an operation that a store applies.
ASKED: Mapping[str, Callable[..., list[What]]] = {
    "enter": _one(Enter),
    "leave": _one(Leave),
    "postpone": _one(Postpone),
    "apply": lambda operation: [operation],
    "apply_each": list,
    "renew": lambda claims: [Renew(claim) for claim in claims],
    "sweep": _one(Sweep),
    "swap": _one(Swap),
}


def spoken(folder: Path) -> list[Spoken]:
    """All of it, in the order of the calls."""
    return sorted(
        (each for path in folder.glob("*.trace") for each in _of(path)),
        key=lambda each: each.called,
    )


def _of(path: Path) -> Iterator[Spoken]:
    calls: dict[CallId, tuple[float, list[What]]] = {}
    for call, at, said in _records(path):
        if call not in calls:
            calls[call] = at, said
            continue
        called, asked = calls.pop(call)
        for what, told in zip(asked, said, strict=True):
            answer, *rest = told
            yield Spoken(what, called, at, answer, call, *rest)
    for call, (called, asked) in calls.items():
        for what in asked:
            yield Spoken(what, called, call=call)


def _records(path: Path) -> Iterator[Any]:
    with path.open("rb") as file:
        while True:
            try:
                yield pickle.load(file)  # our own processes wrote it
            except (EOFError, pickle.UnpicklingError):  # it was killed as it wrote
                return
