"""What a store may answer, one call at a time: the rules that ship, and all that is kept of a key.

A call is what a client asked and what it heard. It says which states of the key it leads to, none
where the rules would have answered something else.

Two things a history cannot know. Tokens are the store's own: a new one has to be larger than all
that were given before, and a grant of which nobody heard may have any. And by a store's own clock
the instants are left out: nothing is to end while such a history lasts.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

from celery_dlock.core import turns
from celery_dlock.core.operations import OnDeadLetter, Operation, Reap
from celery_dlock.core.state import Busy, Dead, Holder, KeyState, Renewed, Run, Same
from celery_dlock.stores.base import Wake
from celery_dlock.stores.change import REMEMBER_LOST, difference

#: The token of a grant that nobody has heard of.
UNHEARD = -1


@dataclass(frozen=True, slots=True)
class Known:
    """One key: its state, messages by task, and what is remembered, with until when.

    ``token`` is the largest one that somebody was given.
    """

    state: KeyState = field(default_factory=KeyState)
    messages: frozenset[tuple[str, bytes]] = frozenset()
    done: frozenset[tuple[str, int]] = frozenset()
    lost: frozenset[tuple[str, int, int]] = frozenset()
    dead: frozenset[tuple[Dead, bytes]] = frozenset()
    token: int = 0

    def after(
        self, operation: Operation[Any], now: int, token: int
    ) -> tuple[Known, Any, tuple[Wake, ...]]:
        """What comes of *operation*: the key as it is then, the verdict, and the wakes."""
        claim, message = operation.claim, operation.message
        before = self._loaded(operation, now)
        step = operation.apply(before, now, token)
        change = difference(before, step)
        messages, dead = dict(self.messages), set(self.dead)
        for kept in [kept for kept in self.dead if kept[0] in before.dead]:
            dead.discard(kept)
            message = kept[1]
        messages |= dict.fromkeys(change.parked, message or b"")
        wakes = tuple(
            Wake(claim.key, turn.task, messages[turn.task], turn.ending, turn.woken)
            for turn in step.wakes
        )
        for letter in change.dead:  # one that a task had before is replaced
            dead = {kept for kept in dead if kept[0].task != letter.task}
            dead.add((letter, message or messages.get(letter.task, b"")))
        done = {task: end for task, end in self.done if task not in change.undone}
        done |= dict.fromkeys(change.done, now + claim.done_ttl)
        lost = {task: (runs, end) for task, runs, end in self.lost if change.lost.get(task) is None}
        lost |= {task: (runs, now + REMEMBER_LOST) for task, runs in change.lost.items() if runs}
        known = Known(
            replace(step.state, done=frozenset(), lost=(), dead=()),
            frozenset(
                (task, text) for task, text in messages.items() if task not in change.unparked
            ),
            frozenset(done.items()),
            frozenset((task, *rest) for task, rest in lost.items()),
            frozenset(dead),
            max(self.token, *(holder.token for holder in step.state.holders), 0),
        )
        return known, step.verdict, wakes

    def _loaded(self, operation: Operation[Any], now: int) -> KeyState:
        task = operation.claim.task
        about = {task, *(holder.task for holder in self.state.holders)}
        replayed = (letter for letter, _ in self.dead if letter.task == task)
        return replace(
            self.state,
            done=frozenset(name for name, end in self.done if name == task and end > now),
            lost=tuple(
                (name, runs) for name, runs, end in sorted(self.lost) if name in about and end > now
            ),
            dead=tuple(replayed) if isinstance(operation, OnDeadLetter) else (),
        )


@dataclass(frozen=True, slots=True)
class Heard:
    """The answer to an operation on one key."""

    verdict: Any
    wakes: tuple[Wake, ...] = ()


@dataclass(frozen=True, slots=True)
class Asked:
    """*operation* was asked for at *now*; *heard* is ``None`` if no answer came.

    Whose driver has said it *twice*, because the first answer was lost, is answered to the second.
    *now* is ``None`` by the store's own clock.
    """

    operation: Operation[Any]
    now: int | None
    heard: Heard | None
    twice: bool = False

    def __call__(self, known: Known) -> Iterator[Known]:
        return self._as(self.operation.again() if self.twice else self.operation, known)

    def _as(self, operation: Operation[Any], known: Known) -> Iterator[Known]:
        heard = self.heard
        given = heard.verdict.token if heard and isinstance(heard.verdict, Run) else UNHEARD
        after, verdict, wakes = known.after(operation, self.now or 0, given)
        new = {h.token for h in after.state.holders} - {h.token for h in known.state.holders}
        if any(0 < token <= known.token for token in new):
            return
        if heard is None or (
            _calls(wakes) == _calls(heard.wakes) and self._alike(verdict, heard.verdict)
        ):
            yield after

    def _alike(self, ours: Any, theirs: Any) -> bool:
        if self.now is None:
            ours, theirs = _timeless(ours), _timeless(theirs)
        match ours, theirs:
            case Run(token=-1), Run():
                return bool(ours.slot == theirs.slot)
            case (Busy(Holder()), Busy(Holder())) | (Same(), Same()):
                theirs = replace(theirs, holder=_alike(theirs.holder, ours.holder))
        return bool(ours == theirs)


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep that began at *now* has done to this key: it was reaped if it was due."""

    key: str
    now: int | None
    wakes: tuple[Wake, ...]

    def __call__(self, known: Known) -> Iterator[Known]:
        due = turns.due(known.state)
        if not self.wakes and (due is None or due > (self.now or 0)):
            yield known
        yield from Asked(Reap(self.key), self.now, Heard(None, self.wakes))(known)


@dataclass(frozen=True, slots=True)
class Seen:
    """What a look at the whole key has shown, and its dead letters."""

    now: int | None
    state: KeyState
    dead: frozenset[tuple[Dead, bytes]]

    def __call__(self, known: Known) -> Iterator[Known]:
        ours, theirs = (self._shown(state) for state in (known.state, self.state))
        pairs = zip(theirs.holders, ours.holders, strict=False)
        holders = tuple(_alike(their, our) for their, our in pairs)
        same_number = len(ours.holders) == len(theirs.holders)
        dead = known.dead == self.dead
        if self.now is None:
            dead = {(d.task, text) for d, text in known.dead} == {
                (d.task, text) for d, text in self.dead
            }
        if same_number and ours == replace(theirs, holders=holders) and dead:
            yield known

    def _shown(self, state: KeyState) -> KeyState:
        """Places that have ended may be there still, and ranks only order."""
        now = self.now or 0
        live = [e for e in state.waiting if e.expires is None or e.expires > now]
        waiting = tuple(replace(entry, rank=rank) for rank, entry in enumerate(live))
        shown = replace(state, waiting=waiting, first=0, last=0, done=frozenset(), lost=(), dead=())
        return shown if self.now is not None else _state_without_instants(shown)


def _calls(wakes: tuple[Wake, ...]) -> list[tuple[Wake, int]]:
    """With how often each was woken: two wakes are equal without that."""
    return [(wake, wake.woken) for wake in wakes]


def _alike(their: Holder, our: Holder) -> Holder:
    """*their* holder, with the token of *our* one if only one of them is known."""
    return replace(their, token=our.token) if UNHEARD in (their.token, our.token) else their


def _timeless(verdict: Any) -> Any:
    """Who of several is named as the holder depends on when they end, too."""
    match verdict:
        case Busy():
            return replace(verdict, holder=None, left=0)
        case Same(holder):
            return Same(_without_instants(holder), 0)
        case Renewed():
            return Renewed(0)
    return verdict


def _without_instants(holder: Holder) -> Holder:
    return replace(holder, since=0, expires=0, cools=0)


def _state_without_instants(state: KeyState) -> KeyState:
    return replace(
        state,
        holders=tuple(sorted(map(_without_instants, state.holders), key=lambda h: h.owner)),
        grants=tuple(replace(grant, due=0, gives_up=None, arrived=None) for grant in state.grants),
        cooling=tuple(replace(slot, until=0) for slot in state.cooling),
        hold=state.hold and replace(state.hold, since=0, until=0),
        waiting=tuple(
            replace(entry, arrived=0, expires=entry.expires and 1, gives_up=None)
            for entry in state.waiting
        ),
    )
