"""A store's ledger is replayed through the rules that ship: what it answered has to follow.

The ledger has the order and the instants, so there is nothing to search: each entry is applied to
what the ones before have left, and the answer that its caller heard must be the one that the rules
give. Lost updates, answers from a stale read, rules that are not the Python ones, replies of
another call, and what was answered and never done all show: at the latest when a later answer
depends on it.

Where holders have leases of the store's own, those whose rows were gone are known to be, and others
have their lease before them. An operation that changed nothing left no entry there: it must have
been right at some time while it was under way.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any

from celery_dlock.core import turns
from celery_dlock.core.operations import Leave, Operation, Reap, Renew
from celery_dlock.core.state import Holder, Unknown
from celery_dlock.stores.base import Reply, Swept
from tests.chaos.ledger import Entry
from tests.chaos.trace import CallId, Seen, Spoken, Swap, Sweep, What
from tests.linearizability.playing import brief
from tests.linearizability.specification import UNHEARD, Asked, Heard, Known


@dataclass(frozen=True, slots=True)
class Replayed:
    """So many operations on so many keys were replayed; *wrong* is what does not follow.

    *aside* are answers of which the ledger says nothing: renewals of a lease of the store's own,
    swaps that changed nothing there, and all of a store without a ledger.
    """

    operations: int = 0
    keys: int = 0
    aside: int = 0
    wrong: tuple[str, ...] = ()


#: An end before that is none: it says for how long after it was seen a lease of the store's own is
#: good, as these stores keep it.
INSTANTS = 10**15


@dataclass(slots=True)
class _Key:
    """All that a key was, each state with the call that has left it there."""

    states: list[Known] = field(default_factory=lambda: [Known()])
    by: list[CallId] = field(default_factory=list[CallId])
    wrong: bool = False


def replay(entries: Sequence[Entry] | None, spoken: Sequence[Spoken]) -> Replayed:
    """What of *spoken* does not follow from *entries*, in their order: of a key the first such."""
    if entries is None:
        return Replayed(aside=sum(each.answered is not None for each in spoken))
    return _Replay(entries, spoken).run()


class _Replay:
    def __init__(self, entries: Sequence[Entry], spoken: Sequence[Spoken]) -> None:
        self._entries = entries
        self._leased = any(entry.number for entry in entries)
        self._spoken = {(each.call, _plain(each.what)): each for each in spoken}
        self._calls = {each.call: each for each in spoken}
        self._last = {
            (entry.call, _plain(what)): number
            for number, entry in enumerate(entries)
            for what in entry.what
        }
        self._keys: dict[str, _Key] = defaultdict(_Key)
        self._swapped: dict[str, tuple[bytes | None, int]] = {}
        self._wrong: list[str] = []
        self._operations = self._aside = 0

    def run(self) -> Replayed:
        for number, entry in enumerate(self._entries):
            for what in entry.what:
                self._operations += 1
                self._do(number, entry, what)
        for said, spoken in self._spoken.items():
            last = self._last.get(said)
            if spoken.answered is not None and (last is None or self._is_before(last, spoken)):
                self._wrong += self._without_entry(spoken)
        return Replayed(self._operations, len(self._keys), self._aside, tuple(self._wrong))

    def _is_before(self, number: int, spoken: Spoken) -> bool:
        """Whether an entry was not heard of: *spoken* was asked again, and that changed nothing."""
        return spoken.seen is not None and spoken.seen.now > self._entries[number].now

    def _do(self, number: int, entry: Entry, what: What) -> None:
        said = entry.call, _plain(what)
        # What a sweep did to one key was answered with all that it did
        spoken = self._spoken.get(said, self._calls.get(entry.call))
        answered = spoken and spoken.answered is not None and what not in spoken.lost
        is_last = self._last[said] == number
        answered = answered and is_last and not (spoken and self._is_before(number, spoken))
        heard = spoken if answered else None
        match what:
            case Swap():
                self._swap(what, entry.now, heard)
            case Sweep():
                woken = {wake.key for wake in heard.answer.wakes} if heard else set[str]()
                for key in sorted({*self._due(entry.now), *woken}):
                    self._step(entry, Reap(key), heard)
            case _:
                self._step(entry, what, heard)

    def _due(self, now: int) -> Iterator[str]:
        for name, key in self._keys.items():
            at = turns.due(key.states[-1].state)
            if at is not None and at <= now:
                yield name

    def _step(self, entry: Entry, operation: Operation[Any], spoken: Spoken | None) -> None:
        key = self._keys[operation.claim.key]
        if key.wrong:
            return
        before, seen = key.states[-1], Seen(entry.now, entry.gone)
        after = self._after(before, operation, seen, spoken)
        if after is None:
            key.wrong = True
            self._wrong.append(self._told(before, operation, seen, spoken))
            return
        key.states.append(after)
        key.by.append(entry.call)

    def _after(
        self, before: Known, operation: Operation[Any], seen: Seen, spoken: Spoken | None
    ) -> Known | None:
        """What *operation* leaves, if it was answered as the rules do."""
        asked = Asked(operation, seen.now, _heard(spoken, operation))
        after = next(iter(asked(_found(before, seen))), None)
        return _kept(before, after, seen) if after and self._leased else after

    def _swap(self, swap: Swap, now: int, heard: Spoken | None) -> None:
        put, ends = self._swapped.get(swap.name, (None, 0))
        stands = put if ends > now else None
        if stands == swap.was:
            stands = swap.becomes
            self._swapped[swap.name] = stands, now + swap.stays
        if heard and heard.answer != stands:
            self._wrong.append(f"{swap.name}: {swap} was answered {heard.answer!r}, not {stands!r}")

    def _without_entry(self, spoken: Spoken) -> Iterator[str]:
        """What changed nothing, or was never done."""
        what, answer = spoken.what, spoken.answer
        if isinstance(what, Sweep):
            for wake in answer.wakes:
                if (spoken.call, Reap(wake.key)) not in self._last:
                    yield f"{wake.key}: {wake.task} is woken by a sweep that has left no trace"
        elif answer == Unknown() or (self._leased and isinstance(what, Renew | Reap)):
            self._aside += 1
        elif spoken.seen is None:
            yield f"{brief(what)} was answered {brief(answer)}, and was never done"
        elif isinstance(what, Swap):
            self._aside += 1
        else:
            self._operations += 1
            key = self._keys[what.claim.key]
            asked = what.again() if (spoken.call, _plain(what)) in self._last else what
            if not key.wrong and not self._was_right(key, asked, spoken.seen, spoken):
                yield f"{what.claim.key}: {brief(what)} was answered {brief(answer)}, never so"

    def _was_right(self, key: _Key, operation: Operation[Any], seen: Seen, spoken: Spoken) -> bool:
        """Whether it was so at some time while it was asked for."""
        assert spoken.answered is not None
        calls = [self._calls[call] for call in key.by]
        before = [n for n, call in enumerate(calls) if (call.answered or inf) < spoken.called]
        after = [n for n, call in enumerate(calls) if call.called > spoken.answered]
        first, last = max(before, default=-1) + 1, min(after, default=len(calls))
        states = key.states[first : last + 1]
        return any(self._after(state, operation, seen, spoken) for state in states)

    def _told(
        self, before: Known, operation: Operation[Any], seen: Seen, spoken: Spoken | None
    ) -> str:
        _, verdict, wakes = _found(before, seen).after(operation, seen.now, UNHEARD)
        heard = _heard(spoken, operation)
        return (
            f"{operation.claim.key}: {brief(operation)} at {seen.now} was answered {brief(heard)}, "
            f"and by the rules it is {brief(Heard(verdict, wakes))}"
        )


def _found(known: Known, seen: Seen) -> Known:
    """As an operation finds it: a lease begins anew whenever it is seen, unless it is gone."""

    def found(holder: Holder) -> Holder:
        if holder.expires > INSTANTS:
            return holder
        ends = seen.now + (0 if holder.owner in seen.gone else holder.expires)
        return replace(holder, expires=ends)

    return _with_holders(known, found)


def _kept(before: Known, after: Known, seen: Seen) -> Known:
    """With the ends as they are kept: of who is known to be gone they are instants from now on."""
    gone = {
        (holder.owner, holder.since)
        for holder in before.state.holders
        if holder.owner in seen.gone or holder.expires > INSTANTS
    }

    def kept(holder: Holder) -> Holder:
        since = 0 if (holder.owner, holder.since) in gone else seen.now
        return replace(holder, expires=holder.expires - since)

    return _with_holders(after, kept)


def _with_holders(known: Known, change: Callable[[Holder], Holder]) -> Known:
    holders = tuple(map(change, known.state.holders))
    return replace(known, state=replace(known.state, holders=holders))


def _plain(what: What) -> What:
    """As it was asked for the first time."""
    if isinstance(what, Leave):
        return replace(what, claim=replace(what.claim, again=False))
    return what


def _heard(spoken: Spoken | None, operation: Operation[Any]) -> Heard | None:
    match spoken and spoken.answer:
        case Reply(verdict, wakes):
            return Heard(verdict, wakes)
        case Swept(wakes):
            key = operation.claim.key
            return Heard(None, tuple(wake for wake in wakes if wake.key == key))
        case None | Unknown():
            return None
        case verdict:
            return Heard(verdict)
