"""The rules with one defect at a time: each breaks a rule of the checks, and has to be found.

They test the checks. That a rule of the machine is right is for its unit tests to show, on every
mutant (``make mutants``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from celery_dlock.core import edits, machine, turns, upkeep
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
from tests.model.config import HOLD, PUBLISHER, REPLY, Config, Task
from tests.services.planted import Instead, planted

Q, P, N, KEEP = Task(), Task(WaitMode.PLACE), Task(WaitMode.NOT), Task(keep=True)
Q2, LATE, ORDERED = Task(limit=2), Task(gives_up=True), Task(ordered=True)
NEW = Task(max_waiting=1, replaces=True, newest=True)
SHRINKS = Task(limit=2, becomes=Q)
REVOKED, UNKNOWN, FOREIGN = Task(revocable=True), Task(unknown=True), Task(foreign=True)

TWO = Config("two, 1 fault", (Q, Q), faults=1)
THREE = Config("three", (Q, Q, Q))
SLOTS = Config("two slots", (Q2, Q2))
SKIP = Config("two that skip, 1 fault", (N, N), faults=1)
COOLS = Config("a cooldown, 1 fault", (Q, Q), faults=1, cooldown=True)
ON_HOLD = Config("on hold once", (Q2, Q2), faults=1, kinds=frozenset({HOLD}))
NEWEST = Config("the newest wins, 1 fault", (NEW, NEW), faults=1)
FEW = Config("one may wait, 1 fault", (Task(max_waiting=1, keep=True),) * 3, faults=1)
IMPATIENT = Config("two give up, 1 fault", (Q, LATE, LATE), faults=1)
IN_VAIN = Config("in vain", (Task(unanswered=True, gives_up=True), Q), faults=1)
EARLY = Config("kept, early, 1 fault", (KEEP, KEEP), faults=1, early_ack=True)
PLACES_EARLY = Config("places, early, 1 fault", (Q, P), faults=1, early_ack=True)
RETRY = Config("a retry, and another", (Task(retries_as=2, reserves=True), Q, Q))
REVOKES = Config("revoked, 1 fault", (REVOKED, Q), faults=1)
LOST = Config("one lost run", (Q,), faults=2, most_lost=1)
CALLED = Config("two calls", (UNKNOWN, UNKNOWN), most_calls=2)
HANDED_BACK = Config("handed back, 1 fault", (Q, FOREIGN), faults=1, most_calls=2)


@dataclass(frozen=True, slots=True)
class Defect:
    """*instead* is done for *function* of *module*; explored in *config*, *rule* must break."""

    module: ModuleType
    function: str
    instead: Instead
    rule: str
    config: Config = TWO

    @contextmanager
    def planted(self) -> Iterator[None]:
        with planted(self.module, self.function, self.instead):
            yield


def _nothing(_: object, state: KeyState, *__: object, **___: object) -> KeyState:
    return state


def _of_turns(state: KeyState, **fields: Any) -> KeyState:
    """*state* with these fields in all turns of tasks."""
    spoilt = (replace(g, **fields) if g.waits else g for g in state.grants)
    return replace(state, grants=tuple(spoilt))


def _off_hold(state: KeyState) -> KeyState:
    return replace(state, hold=None)


def _asks(**fields: Any) -> Instead:
    """The claim is taken for another one."""
    return lambda whole, state, claim, *of, **more: whole(
        state, replace(claim, **fields), *of, **more
    )


def _after_step(change: Any) -> Instead:
    """*change* makes another state of that after the step, and of what it was called with."""

    def instead(whole: Any, state: KeyState, *args: Any) -> Step[Any]:
        step = whole(state, *args)
        return replace(step, state=change(step.state, state, *args))

    return instead


def _drops_the_copy(
    whole: Any, state: KeyState, claim: Claim, now: int, token: int = 0
) -> Step[Any]:
    runs = any(h.task == claim.task and h.nonce != claim.nonce for h in state.holders)
    return Step(state, Drop(Reason.WAITING)) if runs else whole(state, claim, now, token)


def _says_busy(whole: Any, state: KeyState, claim: Claim, now: int, token: int = 0) -> Step[Any]:
    step = whole(state, claim, now, token)
    return (
        replace(step, verdict=machine._busy(state, now)) if isinstance(step.verdict, Same) else step
    )


def _renews_what_has_ended(whole: Any, state: KeyState, claim: Claim, now: int) -> Step[Any]:
    step = whole(state, claim, now)
    ended = edits.holder_of(state, claim) and isinstance(step.verdict, NotHeld)
    return Step(state, Renewed(now + claim.ttl)) if ended else step


def _keeps_the_turn(after: KeyState, before: KeyState, claim: Claim, *_: int) -> KeyState:
    runs = any(h.task == claim.task for h in after.holders)
    turns_taken = tuple(g for g in before.grants if g.task == claim.task and runs)
    return replace(after, grants=(*after.grants, *turns_taken))


def _forgets_what_was_not_held(
    after: KeyState, before: KeyState, claim: Claim, *_: object
) -> KeyState:
    held = edits.holder_of(before, claim) is not None
    return after if held else replace(after, done=before.done)


def _in_one_slot(whole: Any, state: KeyState, *args: Any) -> tuple[KeyState, Run]:
    state, run = whole(state, *args)
    holders = tuple(replace(h, slot=0) for h in state.holders)
    return replace(state, holders=holders), replace(run, slot=0)


def _without_a_word(
    whole: Any, state: KeyState, entry: Any, now: int, ending: Ending | None = None, by: str = ""
) -> KeyState:
    if ending is Ending.DROPPED:
        return edits.drop_entry(state, entry.task)
    return whole(state, entry, now, ending, by)  # type: ignore[no-any-return]


def _own_limit(whole: Any, state: KeyState, mode: Mode, limit: int) -> bool:
    holders = tuple(replace(h, limit=9) for h in state.holders)
    return bool(whole(_of_turns(replace(state, holders=holders), limit=9), mode, limit))


def _called_once(whole: Any, state: KeyState, now: int) -> tuple[KeyState, tuple[Grant, ...]]:
    return (state, ()) if any(g.woken for g in state.grants) else whole(state, now)


DEFECTS = {
    # Who may have the key.
    "a sweep frees whoever holds the key": Defect(
        machine,
        "reap",
        _after_step(lambda after, *_: replace(after, holders=())),
        "S1 only its owner",
        Config("two places, 1 fault", (P, P), faults=1),
    ),
    "two holders have one slot": Defect(edits, "hold", _in_one_slot, "S1 one holder a slot", SLOTS),
    "only the own limit counts while two versions run": Defect(
        edits,
        "free",
        _own_limit,
        "S1 nobody starts",
        Config("a limit that shrinks", (SHRINKS,) * 3, workers=3),
    ),
    "a lease that has ended is renewed": Defect(
        machine, "renew", _renews_what_has_ended, "R a lease that has ended"
    ),
    "a task that is done is not known": Defect(
        machine,
        "enter",
        lambda whole, state, *of: whole(replace(state, done=frozenset()), *of),
        "S3 no body starts",
    ),
    "a result is only remembered while the lock is held": Defect(
        machine, "leave", _after_step(_forgets_what_was_not_held), "S3 what is done"
    ),
    # Whose turn it is.
    "a free key calls nobody": Defect(turns, "settle", lambda _, s, __: (s, ()), "S4 no slot"),
    "a call is not repeated": Defect(turns, "_wake_due", _called_once, "L"),
    "the dead keep their slots": Defect(
        turns,
        "drop_expired",
        lambda whole, state, now: replace(whole(state, now), holders=state.holders),
        "",
    ),
    "a called task loses its turn": Defect(
        edits, "to_grant", lambda _, s, entry, *__: edits.drop_entry(s, entry.task), "S8", THREE
    ),
    "a newcomer overtakes a turn": Defect(
        edits,
        "free",
        lambda whole, state, *of: whole(replace(state, grants=()), *of),
        "Q no more are called",
        THREE,
    ),
    "a newcomer overtakes those who wait": Defect(
        machine,
        "_may_start",
        lambda _, state, claim, *__: edits.free(state, claim.mode, claim.limit),
        "S6 a newcomer waits",
        Config("three, 1 fault", (Q, Q, Q), faults=1),
    ),
    "a place loses its rank at each attempt": Defect(
        machine,
        "_start_or_wait",
        lambda whole, state, claim, _, *of: whole(state, claim, None, *of),
        "S6 t2",
        Config("a place between two that queue", (Q, P, Q)),
    ),
    "a turn is not used up": Defect(
        machine, "enter", _after_step(_keeps_the_turn), "Q never granted while it runs"
    ),
    "a task that is done stays in the queue": Defect(edits, "forget", _nothing, "S5", TWO),
    "places never expire": Defect(turns, "_drop_expired_places", _nothing, "L", PLACES_EARLY),
    # Duplicates.
    "the copy of a running task is dropped": Defect(
        machine,
        "enter",
        _drops_the_copy,
        "S8",
        Config("two, 2 faults", (Q, Q), faults=2),
    ),
    "the copy of a running task hears that another has the key": Defect(
        machine, "enter", _says_busy, "S7 a copy", SKIP
    ),
    "a parked task is parked again": Defect(
        machine,
        "enter",
        lambda whole, state, claim, *of: whole(edits.drop_entry(state, claim.task), claim, *of),
        "R asked again",
    ),
    "who asks again is not known": Defect(machine, "enter", _asks(nonce="another"), "R"),
    "a task stands in the queue twice": Defect(
        edits, "_add", lambda whole, state, entry: whole(whole(state, entry), entry), "Q one entry"
    ),
    # What is lost, and what is kept.
    "a message is acknowledged after its lock was lost": Defect(
        edits, "kept", lambda *_: True, "S8"
    ),
    "the message of a running task is not kept": Defect(
        edits, "hold", _asks(keep=False), "S8", EARLY
    ),
    "a lost run goes behind the others": Defect(
        edits,
        "insert",
        lambda whole, state, claim, now, _, *of: whole(state, claim, now, state.last + 1, *of),
        "S6",
    ),
    "a lost run is forgotten": Defect(edits, "count_lost", _nothing, "S6 a lost run"),
    "a turn of which nobody heard is not kept": Defect(
        edits, "keep_turn", _nothing, "Q a turn of which nobody heard"
    ),
    "each lost answer counts as a lost run": Defect(
        machine,
        "_count_start",
        lambda _, state, task: edits.count_lost(state, task),
        "B what never ran",
        Config("an answer is lost twice", (Q,), faults=2, kinds=frozenset({REPLY}), most_lost=2),
    ),
    "who did not hear that it has left hears that its lock is lost": Defect(
        machine, "leave", _asks(again=False), "R asked again, it left"
    ),
    # Who waits, and for how long.
    "nobody has ever waited for too long": Defect(
        turns, "_waited_enough", lambda *_: False, "S4 nobody waits", IMPATIENT
    ),
    "as many wait as come": Defect(
        machine, "_full", lambda *_: False, "Q no more wait than may", FEW
    ),
    "the message of a running task counts as waiting": Defect(
        edits,
        "messages",
        lambda _, state: tuple(w for w in state.waiting if w.parked),
        "Q who is told so finds it full",
        FEW,
    ),
    "who makes room is dropped without a word": Defect(
        edits,
        "to_grant",
        _without_a_word,
        "S8",
        Config("the newest replaces", (Task(max_waiting=1, replaces=True),) * 3),
    ),
    "a turn forgets how patient its message was": Defect(
        edits,
        "to_grant",
        lambda whole, state, entry, *of: whole(state, replace(entry, gives_up=None), *of),
        "P a turn is as patient",
        IN_VAIN,
    ),
    "who was called in vain is patient for ever": Defect(
        turns,
        "_wake",
        lambda whole, state, turn, now: replace(whole(state, turn, now), ending=turn.ending),
        "P who was called in vain",
        IN_VAIN,
    ),
    "who comes too late to its turn is patient anew": Defect(
        edits,
        "to_head",
        lambda _, state, claim, __, now: edits.insert(state, claim, now, state.first - 1, None),
        "P who waits on",
        IN_VAIN,
    ),
    # Endings.
    "every delivery brings the ending about": Defect(
        machine,
        "enter",
        lambda whole, state, *of: whole(_of_turns(state, taker=""), *of),
        "S7 one delivery",
        IMPATIENT,
    ),
    "an ending whose taker has died is nobody's to take": Defect(
        turns,
        "_wake",
        lambda whole, state, turn, now: replace(whole(state, turn, now), taker=turn.taker),
        "L",
        IMPATIENT,
    ),
    "who was replaced runs again": Defect(edits, "give_way", _nothing, "S10 it is known", NEWEST),
    "whose turn comes just now does not give way": Defect(
        machine,
        "ask_to_give_way",
        lambda whole, state, claim: replace(state, holders=whole(state, claim).holders),
        "S10 the newest",
        Config("three of which the newest wins", (NEW, NEW, NEW)),
    ),
    "what is revoked runs": Defect(
        machine,
        "enter",
        lambda whole, state, *of: whole(_of_turns(state, ending=None), *of),
        "S9 what is revoked does not run",
        REVOKES,
    ),
    "what is revoked has its turn": Defect(
        upkeep,
        "to_grant",
        lambda whole, state, entry, now, *_: whole(state, entry, now),
        "S9 what is revoked is called",
        REVOKES,
    ),
    "the message of a running task is revoked": Defect(
        edits,
        "messages",
        lambda _, state: tuple(w for w in state.waiting if w.parked),
        "S9 what waits can be revoked",
        Config("kept and revoked", (Task(keep=True, revocable=True),)),
    ),
    # Closed keys.
    "a slot does not cool down": Defect(edits, "cool", _nothing, "S9 a slot", COOLS),
    "a hold ends with who has the key": Defect(
        machine,
        "leave",
        _after_step(lambda after, *_: _off_hold(after)),
        "S11 a hold lasts",
        ON_HOLD,
    ),
    "a key on hold is free": Defect(
        edits,
        "free",
        lambda whole, state, *of: whole(_off_hold(state), *of),
        "S1 nobody starts",
        ON_HOLD,
    ),
    "a hold takes the turn of who was called": Defect(
        edits,
        "put_on_hold",
        lambda whole, state, *of: whole(replace(state, grants=()), *of),
        "S8",
        Config("on hold, 2 faults", (Q, Q), faults=2, kinds=frozenset({HOLD, PUBLISHER})),
    ),
    # Who asks in other ways.
    "who publishes in order takes the key": Defect(
        machine,
        "enter",
        _asks(wait=WaitMode.QUEUE),
        "Q who publishes",
        Config("ordered", (ORDERED, ORDERED)),
    ),
    "who only looks is parked": Defect(
        machine,
        "enter",
        lambda whole, state, claim, *of: whole(
            state,
            replace(claim, wait=WaitMode.QUEUE) if claim.wait is WaitMode.LOOK else claim,
            *of,
        ),
        "Q who does not queue",
        Config("looks", (Task(looks=True),) * 2),
    ),
    "nothing is reserved for a retry": Defect(edits, "reserve", _nothing, "S6 nobody has", RETRY),
    # Dead letters.
    "what kills its workers runs for ever": Defect(
        machine, "_lost_too_often", lambda *_: False, "B what was lost so often", LOST
    ),
    "a dead message is on no list": Defect(
        edits,
        "to_dead_letter",
        lambda whole, state, *of: replace(whole(state, *of), dead=state.dead),
        "B who is told to be dead",
        LOST,
    ),
    "a dead message waits as well": Defect(edits, "leave_queue", _nothing, "B", CALLED),
    "one worker that does not know a task dead-letters it": Defect(
        upkeep,
        "dead_letter",
        lambda whole, state, *of: whole(_of_turns(state, woken=9), *of),
        "B a message is dead",
        CALLED,
    ),
    "what is handed back counts as called": Defect(
        upkeep,
        "hand_back",
        _after_step(lambda after, *_: _of_turns(after, woken=1)),
        "B what is handed back",
        HANDED_BACK,
    ),
    "it is forgotten since when a message is handed back": Defect(
        upkeep,
        "hand_back",
        _after_step(lambda after, *_: _of_turns(after, handed_back=None)),
        "P since when",
        HANDED_BACK,
    ),
    "what is replayed is dead at once": Defect(
        edits, "forget_past", _nothing, "B of what is replayed", LOST
    ),
    "what is replayed is dropped": Defect(
        edits, "put_back", _nothing, "B what is replayed waits", LOST
    ),
}
