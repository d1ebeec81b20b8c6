"""The shipped rules, on a key whose instants are only "past" or "ahead".

Real instants would make the space of states infinite. Here it is always the same moment, and
what is to come either lies ahead or has passed; the surroundings may let any single instant pass
at any time. That allows every order of events that real clocks allow, and more. Ranks, counters
and times of arrival are brought to a normal form, equal states are one number, and each operation
on each state is computed (and checked) once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

from celery_dlock.core import machine
from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    HandBack,
    Operation,
    PutOnHold,
    Reap,
    Replay,
)
from celery_dlock.core.state import (
    STRANGER_RESERVED,
    WAKES_RESERVED,
    Cause,
    Claim,
    Dead,
    Grant,
    Holder,
    KeyState,
    LeaveVerdict,
    Mode,
    Outcome,
    Step,
    Waiting,
)
from tests.model import checks
from tests.model.checks_of_keeping import (
    check_dead_lettered,
    check_left_again,
    check_unheard,
    check_unused,
    check_upkeep,
)

NOW = 0
AHEAD = 1

#: So many calls reserve nothing any more; one more is as many.
IN_VAIN = WAKES_RESERVED + 1

#: What was handed back so long ago, too.
LONG_AGO = -10 * STRANGER_RESERVED

Alter = Callable[[KeyState], KeyState]


class Op(NamedTuple):
    """What an operation came to. ``turns``: whose turn it was, in order (a hold or a grant);

    ``ended``: who was called to end instead.
    """

    key: int
    verdict: Any
    wakes: tuple[str, ...]
    turns: tuple[str, ...]
    ended: tuple[str, ...]
    dead: tuple[int, ...]


def normal(state: KeyState, most_lost: int = 1, most_calls: int = 1) -> KeyState:
    """The normal form of *state*, with counts up to the given ones."""
    holders = map(_holder, state.holders)
    waiting = tuple(_waiting(w, n) for n, w in enumerate(state.waiting, 1))
    grants = (_grant(g, most_calls) for g in state.grants)
    slots = sorted(state.cooling, key=lambda slot: slot.until)
    hold = state.hold
    return replace(
        state,
        holders=tuple(sorted(holders, key=lambda h: (h.slot, h.task, h.nonce))),
        grants=tuple(sorted(grants, key=lambda g: g.task)),
        waiting=waiting,
        first=min(1, len(waiting)),
        last=len(waiting),
        lost=tuple(sorted((task, min(count, most_lost)) for task, count in state.lost)),
        dead=(),
        paused=0,
        cooling=tuple(replace(s, name=str(n), until=when(s.until)) for n, s in enumerate(slots)),
        hold=hold and replace(hold, since=NOW, until=when(hold.until)),
    )


def _holder(h: Holder) -> Holder:
    expires, cools = when(h.expires), when(h.cools)
    if (h.since, h.expires, h.cools) == (NOW, expires, cools):
        return h
    return replace(h, since=NOW, expires=expires, cools=cools)


def _waiting(w: Waiting, rank: int) -> Waiting:
    expires, gives_up = _when(w.expires), _when(w.gives_up)
    if (w.rank, w.arrived, w.expires, w.gives_up) == (rank, NOW, expires, gives_up):
        return w
    return replace(w, rank=rank, arrived=NOW, expires=expires, gives_up=gives_up)


def _grant(g: Grant, most_calls: int) -> Grant:
    woken = IN_VAIN if g.woken >= IN_VAIN else max(1, min(g.woken, most_calls))
    due, gives_up = when(g.due), _when(g.gives_up)
    if (g.woken, g.due, g.gives_up, g.arrived) == (woken, due, gives_up, NOW):
        return g
    return replace(g, woken=woken, due=due, gives_up=gives_up, arrived=NOW)


def when(instant: int) -> int:
    return AHEAD if instant > NOW else NOW


def _when(instant: int | None) -> int | None:
    return None if instant is None else when(instant)


def _renumbered(state: KeyState) -> KeyState:
    """*state* with its tokens numbered 1, 2, 3, in their order."""
    tokens = {0, *(h.token for h in state.holders)}
    if max(tokens) < len(tokens):
        return state
    new = {old: n for n, old in enumerate(sorted(tokens))}
    return replace(state, holders=tuple(replace(h, token=new[h.token]) for h in state.holders))


class Keys:
    """Every state of the key that was met, by number, and every operation on each of them.

    Lost runs are counted up to *most_lost* and calls up to *most_calls*.
    """

    def __init__(self, most_lost: int, most_calls: int) -> None:
        self._most = (most_lost, most_calls)
        self.states: list[KeyState] = []
        self.facts: list[checks.Facts] = []
        self._numbers: dict[KeyState, int] = {}
        self._ops: dict[tuple[object, ...], Op] = {}
        self._altered: dict[tuple[object, ...], int] = {}

    @property
    def operations(self) -> int:
        """How many operations were applied, each to each of the states it met."""
        return len(self._ops)

    def number(self, state: KeyState) -> int:
        state = _renumbered(self._normal(state))
        found = self._numbers.get(state)
        if found is None:
            facts = checks.check_state(state)
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
            self.facts.append(facts)
        return found

    def _normal(self, state: KeyState) -> KeyState:
        return normal(state, *self._most)

    def enter(self, key: int, claim: Claim, token: int) -> Op:
        name = ("enter", key, id(claim), token)  # of one model, which keeps each claim once
        found = self._ops.get(name)
        if found is None:
            before = _loaded(self.states[key], claim.task)
            step = machine.enter(before, claim, NOW, token)
            after = self._normal(step.state)
            again = machine.enter(after, claim, NOW, token + 1)
            same = self._normal(again.state) == after
            checks.check_enter(before, claim, step, again, same=same)
            checks.check_newest(before, claim, step)
            check_dead_lettered(before, claim, step)
            found = self._ops[name] = self._op(key, before, step)
        return found

    def leave(self, key: int, claim: Claim, outcome: Outcome) -> Op:
        name = ("leave", key, id(claim), outcome.value)
        found = self._ops.get(name)
        if found is None:
            before = _loaded(self.states[key], claim.task)
            step = machine.leave(before, claim, outcome, NOW)
            if not claim.again:  # which is one of the two that are compared here
                self._check_leave(before, claim, outcome, step)
            unused = "" if claim.begun else claim.owner
            found = self._ops[name] = self._op(key, before, step, unused=unused)
        return found

    def _check_leave(
        self, before: KeyState, claim: Claim, outcome: Outcome, step: Step[LeaveVerdict]
    ) -> None:
        after = self._normal(step.state)
        again = machine.leave(after, claim, outcome, NOW)
        same = self._normal(again.state) == after
        checks.check_leave(before, claim, outcome, step, again, same=same)
        says_so = machine.leave(after, replace(claim, again=True), outcome, NOW)
        same = self._normal(says_so.state) == after
        check_left_again(step, says_so, same=same)
        check_unused(before, claim, outcome, step)
        check_unheard(before, claim, outcome, step)

    def renew(self, key: int, claim: Claim) -> Op:
        name = ("renew", key, id(claim))
        found = self._ops.get(name)
        if found is None:
            before = _loaded(self.states[key], claim.task)
            step = machine.renew(before, claim, NOW)
            found = self._ops[name] = self._op(key, before, step, settles=False)
        return found

    def reap(self, key: int) -> Op:
        return self._upkeep(key, Reap("key"))

    def cancel(self, key: int, task: str) -> Op:
        return self._upkeep(key, Cancel("key", task))

    def dead_letter(self, key: int, task: str) -> Op:
        return self._upkeep(key, DeadLetter("key", task, Cause.UNKNOWN_TASK))

    def put_on_hold(self, key: int) -> Op:
        return self._upkeep(key, PutOnHold("key", "", "a hold", "ann", "why", AHEAD))

    def hand_back(self, key: int, task: str) -> Op:
        return self._upkeep(key, HandBack("key", task))

    def replay(self, key: int, task: str, mode: Mode, limit: int) -> Op:
        return self._upkeep(
            key, Replay("key", task), (Dead(task, mode, limit, Cause.RUNS_LOST, NOW),)
        )

    def _upkeep(self, key: int, operation: Operation[Any], dead: tuple[Dead, ...] = ()) -> Op:
        found = self._ops.get((key, operation))
        if found is None:
            task = operation.claim.task
            before = replace(_loaded(self.states[key], task), dead=dead)
            step = operation.apply(before, NOW)
            if not isinstance(operation, Reap):
                check_upkeep(operation, before, step)
            found = self._ops[key, operation] = self._op(key, before, step)
        return found

    def altered(self, key: int, name: tuple[object, ...], alter: Alter) -> int:
        """The number of *key* after *alter*, a change of its surroundings that *name* names."""
        found = self._altered.get((key, name))
        if found is None:
            found = self._altered[key, name] = self.number(alter(self.states[key]))
        return found

    def _op(
        self,
        key: int,
        before: KeyState,
        step: Step[Any],
        *,
        settles: bool = True,
        unused: str = "",
    ) -> Op:
        whole = self.states[key]
        known = {entry[0] for entry in before.lost}
        after = replace(
            step.state,
            done=step.state.done | (whole.done - before.done),
            lost=step.state.lost + tuple(e for e in whole.lost if e[0] not in known),
        )
        if settles:
            checks.check_after(after)
            checks.check_patience(before, after)
            checks.check_cooling(before, after, unused)
            checks.check_hold(before, after)
            checks.check_gave_way(before, after)
        wakes = tuple(sorted(turn.task for turn in step.wakes))
        turns, ended = _turns(before, step.state)
        dead = tuple(int(d.task[1:]) for d in step.state.dead)
        return Op(self.number(after), step.verdict, wakes, turns, ended, dead)


def _loaded(state: KeyState, task: str) -> KeyState:
    """What a store hands to an operation: of ``done`` and ``lost`` only what it may ask for."""
    asked = {task, *(h.task for h in state.holders)}
    return replace(
        state,
        done=state.done & {task},
        lost=tuple(entry for entry in state.lost if entry[0] in asked),
    )


def _turns(before: KeyState, after: KeyState) -> tuple[tuple[str, ...], tuple[str, ...]]:
    had = {h.task for h in before.holders} | {g.task for g in before.grants}
    called = [g for g in after.grants if g.task not in had]
    holders = [h.task for h in after.holders if h.task not in had]
    return (
        (*holders, *(g.task for g in called if g.ending is None)),
        tuple(g.task for g in called if g.ending is not None),
    )
