"""The shipped rules on a key whose instants have passed (0) or lie ahead (1).

Real instants would make the space of states infinite. Here it is always the same moment, and any
instant may pass at any time: that allows every order of events that real clocks allow. Equal
states are one number, and each operation on each state is computed, and checked, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from celery_dlock.core.operations import Enter, Leave, Operation, Renew
from celery_dlock.core.state import (
    Busy,
    Claim,
    Cooling,
    End,
    Grant,
    Holder,
    KeyState,
    Mode,
    Outcome,
    Run,
    Same,
    Step,
    Waiting,
    WaitMode,
)

NOW, AHEAD = 0, 1


class Violation(Exception):
    """A rule is broken; ``trace`` is the shortest way there."""

    def __init__(self, rule: str, detail: object = "") -> None:
        super().__init__(rule, detail)
        self.rule, self.detail, self.trace = rule, detail, list[str]()

    def __str__(self) -> str:
        return "\n  ".join((f"{self.rule}: {self.detail}", *self.trace))


def require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise Violation(rule, detail)


class Op(NamedTuple):
    """What an operation came to: the key after it, its verdict, and the tasks that were woken."""

    key: int
    verdict: Any
    wakes: tuple[int, ...]


class Keys:
    """Every state of the key that was met, by number."""

    def __init__(self) -> None:
        self.states: list[KeyState] = []
        self._numbers: dict[KeyState, int] = {}
        self._applied: dict[tuple[int, Operation[Any]], Op] = {}

    def number(self, state: KeyState) -> int:
        state = normal(state)
        found = self._numbers.get(state)
        if found is None:
            check_state(state)
            found = self._numbers[state] = len(self.states)
            self.states.append(state)
        return found

    def apply(self, key: int, operation: Operation[Any]) -> Op:
        found = self._applied.get((key, operation))
        if found is None:
            before = self.states[key]
            token = max((h.token for h in before.holders), default=0) + 1
            step = operation.apply(before, NOW, token)
            match operation:
                case Enter():
                    check_enter(before, operation.claim, step)
                case Leave():
                    check_leave(before, operation, step)
            if not isinstance(operation, Renew):
                check_after(step.state)
            wakes = tuple(sorted(int(turn.task[1:]) for turn in step.wakes))
            found = Op(self.number(step.state), step.verdict, wakes)
            self._applied[key, operation] = found
        return found


def normal(state: KeyState) -> KeyState:
    """*state* without what makes no difference: ranks, counts, dates, and how large a token is."""
    tokens = {t: n for n, t in enumerate(sorted({0, *(h.token for h in state.holders)}))}
    holders = [
        replace(h, token=tokens[h.token], since=NOW, expires=_when(h.expires), cools=_when(h.cools))
        for h in state.holders
    ]
    grants = [
        replace(g, woken=1, due=_when(g.due), gives_up=_end(g.gives_up), arrived=NOW)
        for g in state.grants
    ]
    waiting = [
        replace(w, rank=n, arrived=NOW, expires=_end(w.expires), gives_up=_end(w.gives_up))
        for n, w in enumerate(state.waiting, 1)
    ]
    slots = sorted(state.cooling, key=lambda slot: slot.until)
    return replace(
        state,
        holders=tuple(sorted(holders, key=lambda h: (h.slot, h.task, h.nonce))),
        grants=tuple(sorted(grants, key=lambda g: g.task)),
        waiting=tuple(waiting),
        first=min(1, len(waiting)),
        last=len(waiting),
        lost=tuple(sorted((task, 1) for task, _ in state.lost)),
        paused=0,
        cooling=tuple(replace(s, name=str(n), until=_when(s.until)) for n, s in enumerate(slots)),
        hold=state.hold and replace(state.hold, since=NOW, until=_when(state.hold.until)),
    )


def _when(instant: int) -> int:
    return AHEAD if instant > NOW else NOW


def _end(instant: int | None) -> int | None:
    return None if instant is None else _when(instant)


# What must hold.


def check_state(state: KeyState) -> None:
    """Check what holds in every state, also between operations."""
    live = [h for h in state.holders if h.expires > NOW]
    tasks, turns = [h.task for h in live], [g.task for g in state.grants]
    entries = [w.task for w in state.waiting]
    readers = [h for h in live if h.mode is Mode.SHARED]
    require(len(readers) in (0, len(live)), "S1 never a reader together with a writer", state)
    if not readers:
        alone = any(h.mode is Mode.EXCLUSIVE for h in live)
        require(not alone or len(live) == 1, "S1 who holds alone is alone", state)
        require(len({h.slot for h in live}) == len(live), "S1 one holder a slot", state)
        require(len({h.token for h in live}) == len(live), "S1 one token a holder", state)
    limits = {s.limit for s in _slots(state) if s.mode is Mode.LIMITED}
    require(len(limits) <= 1, "S1 a key has one limit", state)
    for names in (tasks, turns, entries, [*turns, *entries], [*turns, *tasks]):
        require(len(set(names)) == len(names), "Q a task is there once", state)
    parked = sum(w.parked for w in state.waiting)
    require(state.parked == parked, "Q parked counts the parked entries", state)
    closed = bool(live or turns or state.cooling or state.hold) or is_due(state)
    require(not parked or closed, "S4 somebody will wake it", state)


def is_due(state: KeyState) -> bool:
    """Whether a sweeper has something to do."""
    instants = [h.expires for h in state.holders] + [g.due for g in state.grants]
    instants += [w.expires for w in state.waiting if w.expires is not None]
    instants += [closed.until for closed in (*state.cooling, state.hold) if closed is not None]
    return NOW in instants or any(w.gives_up == NOW for w in _others(state))


def _others(state: KeyState) -> list[Waiting]:
    """Those who wait and do not run."""
    running = {h.task for h in state.holders}
    return [w for w in state.waiting if w.task not in running]


def check_after(state: KeyState) -> None:
    """Check what every operation must have left behind."""
    others = _others(state)
    idle = any(w.parked for w in others) and fits(state, others[0])
    require(not idle, "S4 no slot stays free while a message waits that fits", state)
    late = [w for w in others if w.gives_up is not None and w.gives_up <= NOW]
    require(not late, "S4 nobody waits who has waited for too long", state)


def _slots(state: KeyState) -> list[Holder | Grant | Cooling]:
    return [*state.holders, *state.grants, *state.cooling]


def fits(state: KeyState, asking: Waiting | Claim) -> bool:
    """Whether *asking* could hold the key beside all that is taken.

    What waits has no limit of its own: what the key has counts, as far as somebody is there.
    """
    if state.hold is not None:
        return False
    taken: list[Holder | Grant | Cooling] = [*state.holders, *state.cooling]
    taken += [g for g in state.grants if g.reserves and g.task != asking.task]
    if any(t.mode is not asking.mode for t in taken):
        return False
    if asking.mode is not Mode.LIMITED:
        return asking.mode is Mode.SHARED or not taken
    limit = next((s.limit for s in _slots(state) if s.mode is Mode.LIMITED), 1)
    if isinstance(asking, Claim):
        own = sum(g.task == asking.task for g in state.grants)
        limit, is_over = asking.limit, len(taken) + own > asking.limit
        taken = [t for t in taken if not (is_over and isinstance(t, Grant) and t.elsewhere)]
    return len(taken) < limit


def check_limit(claim: Claim, state: KeyState) -> None:
    """Check that *claim*, which is the newest to ask, says how many may hold the key."""
    limits = {s.limit for s in _slots(state) if s.mode is Mode.LIMITED}
    newest = claim.mode is not Mode.LIMITED or limits <= {claim.limit}
    require(newest, "S1 the newest asker says the limit", (claim, state))


def check_enter(before: KeyState, claim: Claim, step: Step[Any]) -> None:
    live = [h for h in before.holders if h.expires > NOW]
    own = [h for h in step.state.holders if h.owner == claim.owner]
    runs = isinstance(step.verdict, Run)
    require(not runs or len(own) == 1, "R who is told to run holds the key", step)
    check_limit(claim, step.state)
    queues = claim.wait is WaitMode.QUEUE or claim.enqueues
    refused = isinstance(step.verdict, Same) or (
        isinstance(step.verdict, Busy) and not step.verdict.full
    )
    require(not (queues and refused), "Q who queues is parked", step)
    if isinstance(step.verdict, Busy):
        require(claim.task not in {h.task for h in live}, "S7 a copy of what runs is told so", step)
    if isinstance(step.verdict, End):
        takers = {g.taker for g in before.grants if g.task == claim.task and g.due > NOW}
        require(takers <= {"", claim.nonce}, "S7 one delivery brings an ending about", step)
    if runs and claim.owner not in {h.owner for h in live}:
        _check_begins(before, claim, step)


def _check_begins(before: KeyState, claim: Claim, step: Step[Any]) -> None:
    """Check that a body may begin: nobody runs beside it who must not, and nobody came before."""
    live = [h for h in before.holders if h.expires > NOW]
    require(not claim.enqueues, "Q who publishes does not run", step)
    require(claim.task not in before.done, "S3 no body starts after done", step)
    free = replace(
        before,
        holders=tuple(live),
        cooling=tuple(s for s in before.cooling if s.until > NOW),
        grants=tuple(g for g in before.grants if g.parked or g.due > NOW),
        hold=before.hold if before.hold and before.hold.until > NOW else None,
    )
    require(fits(free, claim), "S1 nobody starts where there is no room", (before, step))
    first = {task for task, _ in before.lost} | {h.task for h in before.holders}
    first |= {g.task for g in before.grants}
    waits = [w for w in before.waiting if w.parked and w.task not in {h.task for h in live}]
    require(claim.task in first or not waits, "S6 a newcomer waits while others wait", before)


def check_leave(before: KeyState, leave: Leave, step: Step[Any]) -> None:
    """Check that a final outcome is remembered, and that leaving twice changes nothing.

    And that a turn of which nobody heard is kept.
    """
    claim = leave.claim
    had = any(h.owner == claim.owner and not h.replaced_by for h in before.holders)
    if had and leave.outcome is Outcome.REPEAT and claim.has_message and not claim.begun:
        kept = any(g.task == claim.task and g.parked for g in step.state.grants)
        if step.state.hold is not None:  # on which nobody has a turn
            kept = [w.task for w in step.state.waiting[:1] if w.parked] == [claim.task]
        require(kept or claim.task in step.state.done, "Q a turn is kept", (before, step))
    waits = {w.task for w in step.state.waiting} | {g.task for g in step.state.grants}
    if leave.outcome is Outcome.DONE:
        require(claim.task in step.state.done, "S3 what is done is remembered", step)
        require(claim.task not in waits, "S5 what is done is not woken again", step)
    again = replace(leave, claim=replace(claim, again=False)).apply(step.state, NOW)
    same = normal(again.state) == normal(step.state) and not again.wakes
    require(same, "R leaving twice changes nothing", (step, again))
