"""The rules with one defect at a time: each breaks a rule of the explorer, and has to be found."""

from __future__ import annotations

from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from celery_dlock.core import edits, machine, turns
from celery_dlock.core.state import (
    Claim,
    Drop,
    Ending,
    Grant,
    KeyState,
    Mode,
    NotHeld,
    Reason,
    Renewed,
    Run,
    Same,
    Step,
    WaitMode,
)
from tests.model.explore import Config, Task
from tests.model.worlds import (
    CHAINS,
    KEEP,
    LATE,
    NARROWS,
    ONE,
    ORDERED,
    PLACE,
    QUEUE,
    REVOKED,
    SHRINKS,
    SKIP,
    THREE,
    TWO,
)
from tests.services.planted import Instead

PAIR = Config("two, a fault", (QUEUE, QUEUE), faults=1)
TRIPLE = Config("three, a fault", (QUEUE,) * 3, faults=1)
PLACES = Config("two places, a fault", (PLACE, PLACE), faults=1)
SKIPS = Config("two that skip, a fault", (SKIP, SKIP), faults=1)
IMPATIENT = Config("two give up, a fault", (QUEUE, LATE, LATE), faults=1)
EARLY = Config("kept; early, a fault", (KEEP, KEEP), faults=1, early_ack=True)
HELD = Config("on hold", (TWO, TWO), faults=1, hold=True)
CHAINED = Config("a chain, a fault", (replace(CHAINS, retries_as=1), QUEUE, QUEUE), faults=1)
TWO_AND_MORE = Config("limits of one, two, three", (ONE, TWO, THREE), workers=3)
REPLACING = Config("the newest replaces", (Task(max_waiting=1, replaces=True),) * 3)


@dataclass(frozen=True, slots=True)
class Defect:
    """*instead* is done for *function* of *module*; explored in *config*, *rule* must break."""

    module: ModuleType
    function: str
    instead: Instead
    rule: str
    config: Config = PAIR


def _nothing(_: object, state: KeyState, *__: object, **___: object) -> KeyState:
    return state


def _before(change: Any) -> Instead:
    """The state is taken for another one."""
    return lambda whole, state, *of, **more: whole(change(state), *of, **more)


def _after(change: Any) -> Instead:
    """*change* makes another state of that after the step, and of what it was called with."""

    def instead(whole: Any, state: KeyState, *of: Any) -> Step[Any]:
        step = whole(state, *of)
        return replace(step, state=change(step.state, state, *of))

    return instead


def _claims(**fields: Any) -> Instead:
    return lambda whole, state, claim, *of, **more: whole(
        state, replace(claim, **fields), *of, **more
    )


def _behind_others(whole: Any, state: KeyState, claim: Claim, *of: Any) -> Step[Any]:
    at_head = claim.wait is WaitMode.HEAD
    step: Step[Any] = whole(state, replace(claim, wait=WaitMode.ENQUEUE) if at_head else claim, *of)
    return step


def _without_turns(state: KeyState) -> KeyState:
    return replace(state, grants=())


def _off_hold(state: KeyState) -> KeyState:
    return replace(state, hold=None)


def _drops_the_copy(whole: Any, state: KeyState, claim: Claim, *of: int) -> Step[Any]:
    runs = any(h.task == claim.task and h.nonce != claim.nonce for h in state.holders)
    return Step(state, Drop(Reason.WAITING)) if runs else whole(state, claim, *of)


def _says_busy(whole: Any, state: KeyState, claim: Claim, now: int, token: int = 0) -> Step[Any]:
    step = whole(state, claim, now, token)
    same = isinstance(step.verdict, Same)
    return replace(step, verdict=machine._busy(state, now)) if same else step


def _renews_what_has_ended(whole: Any, state: KeyState, claim: Claim, now: int) -> Step[Any]:
    step = whole(state, claim, now)
    ended = edits.holder_of(state, claim) and isinstance(step.verdict, NotHeld)
    return Step(state, Renewed(now + claim.ttl)) if ended else step


def _keeps_the_turn(after: KeyState, before: KeyState, claim: Claim, *_: int) -> KeyState:
    runs = any(h.task == claim.task for h in after.holders)
    taken = tuple(g for g in before.grants if g.task == claim.task and runs)
    return replace(after, grants=(*after.grants, *taken))


def _forgets_what_was_not_held(
    after: KeyState, before: KeyState, claim: Claim, *_: Any
) -> KeyState:
    held = edits.holder_of(before, claim) is not None
    return after if held else replace(after, done=before.done)


def _in_one_slot(whole: Any, state: KeyState, *of: Any) -> tuple[KeyState, Run]:
    state, run = whole(state, *of)
    return replace(state, holders=tuple(replace(h, slot=0) for h in state.holders)), run


def _without_a_word(whole: Any, state: KeyState, entry: Any, *of: Any) -> Any:
    dropped = Ending.DROPPED in of
    return edits.drop_entry(state, entry.task) if dropped else whole(state, entry, *of)


def _with_limit(state: KeyState, limit: int) -> KeyState:
    return edits.ask_with_limit(state, Mode.LIMITED, limit)


def _all_limited(state: KeyState) -> KeyState:
    holders = tuple(replace(h, mode=Mode.LIMITED) for h in state.holders)
    return replace(state, holders=holders)


def _woken_once(whole: Any, state: KeyState, now: int) -> tuple[KeyState, tuple[Grant, ...]]:
    return (state, ()) if state.grants else whole(state, now)


def _keeps_its_taker(whole: Any, state: KeyState, turn: Grant, now: int) -> Grant:
    woken: Grant = whole(state, turn, now)
    return replace(woken, taker=turn.taker)


DEFECTS = {
    # Who may have the key
    "a sweep frees whoever holds the key": Defect(
        machine, "reap", _after(lambda after, *_: replace(after, holders=())), "S1 only", PLACES
    ),
    "two holders have one slot": Defect(
        edits, "hold", _in_one_slot, "S1 one holder", Config("two slots", (TWO, TWO))
    ),
    "a limit stays what it was while somebody holds the key": Defect(
        edits, "ask_with_limit", lambda _, state, *__: state, "S1 the newest", TWO_AND_MORE
    ),
    "a limit that has fallen lets others in": Defect(
        edits,
        "free",
        lambda whole, state, mode: whole(_with_limit(state, 9), mode),
        "S1 nobody starts",
        Config("a limit that falls", (NARROWS,) * 3, workers=3),
    ),
    "who wants the key alone is joined by those with a limit": Defect(
        edits,
        "free",
        lambda whole, state, _: whole(_all_limited(state), Mode.LIMITED),
        "S1 nobody starts",
        Config("a limit that is no limit any more", (SHRINKS,) * 3, workers=3),
    ),
    "a lease that has ended is renewed": Defect(machine, "renew", _renews_what_has_ended, "R a"),
    "a task that is done is not known": Defect(
        machine, "enter", _before(lambda state: replace(state, done=frozenset())), "S3 no body"
    ),
    "a result is only remembered while the lock is held": Defect(
        machine, "leave", _after(_forgets_what_was_not_held), "S3 what is done"
    ),
    "a key on hold is free": Defect(edits, "free", _before(_off_hold), "S1 nobody starts", HELD),
    "what is revoked runs": Defect(
        machine,
        "enter",
        _before(lambda s: replace(s, grants=tuple(replace(g, ending=None) for g in s.grants))),
        "S9",
        Config("revoked, a fault", (REVOKED, QUEUE), faults=1),
    ),
    # Whose turn it is
    "a free key wakes nobody": Defect(
        turns, "settle", lambda _, s, *__, **___: (s, ()), "S4 no slot"
    ),
    "a newcomer overtakes a turn": Defect(edits, "free", _before(_without_turns), "S", TRIPLE),
    "a newcomer overtakes those who wait": Defect(
        machine,
        "_may_start",
        lambda _, state, claim, *__: edits.free(state, claim.mode),
        "S6",
        TRIPLE,
    ),
    "a wake is not repeated": Defect(turns, "_wake_due", _woken_once, "L"),
    "places never expire": Defect(
        turns, "_drop_expired_places", _nothing, "L", replace(PLACES, early_ack=True)
    ),
    "nobody has ever waited for too long": Defect(
        turns, "_waited_enough", lambda *_: False, "S4 nobody waits", IMPATIENT
    ),
    "an ending whose taker has died is nobody's to take": Defect(
        turns, "_wake", _keeps_its_taker, "L", IMPATIENT
    ),
    "every delivery brings the ending about": Defect(
        machine,
        "enter",
        _before(lambda s: replace(s, grants=tuple(replace(g, taker="") for g in s.grants))),
        "S7 one",
        IMPATIENT,
    ),
    "a turn of which nobody heard is not kept": Defect(edits, "keep_turn", _nothing, "Q a turn"),
    "a turn is not used up": Defect(machine, "enter", _after(_keeps_the_turn), "Q a task"),
    "a task stands in the queue twice": Defect(
        edits, "_add", lambda whole, state, entry: whole(whole(state, entry), entry), "Q a task"
    ),
    "who publishes in order takes the key": Defect(
        machine,
        "enter",
        _claims(wait=WaitMode.QUEUE),
        "Q who publishes",
        Config("published in order", (ORDERED, ORDERED)),
    ),
    "the next step of a chain waits behind others": Defect(
        machine, "enter", _behind_others, "S10", CHAINED
    ),
    "a task that is done stays in the queue": Defect(edits, "forget", _nothing, "S5"),
    # Whose message is lost
    "a woken task loses its turn": Defect(
        edits,
        "to_grant",
        lambda _, state, entry, *__: edits.drop_entry(state, entry.task),
        "S8",
        replace(TRIPLE, faults=0),
    ),
    "the copy of a running task is dropped": Defect(
        machine, "enter", _drops_the_copy, "S8", replace(PAIR, faults=2)
    ),
    "the copy of a running task hears that another has the key": Defect(
        machine, "enter", _says_busy, "S7 a copy", SKIPS
    ),
    "a message is acknowledged after its lock was lost": Defect(
        edits, "kept", lambda *_: True, "S8"
    ),
    "the message of a running task is not kept": Defect(
        edits, "hold", _claims(keep=False), "S8", EARLY
    ),
    "who makes room is dropped without a word": Defect(
        edits, "to_grant", _without_a_word, "S8", REPLACING
    ),
}
