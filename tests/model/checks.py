"""What must hold: after each operation, and in each state of the key and of the world.

The rules are written here a second time, in other words than those of the machine, so that an
error there is not repeated here.
"""

from __future__ import annotations

from typing import NamedTuple

from celery_dlock.core.state import (
    STRANGER_RESERVED,
    WAKES_RESERVED,
    Busy,
    Claim,
    Cooling,
    Drop,
    End,
    EnterVerdict,
    Grant,
    Holder,
    KeyState,
    LeaveVerdict,
    Left,
    Mode,
    NotHeld,
    Outcome,
    Park,
    Run,
    Same,
    Step,
    Waiting,
    WaitMode,
)


class Violation(Exception):
    """A rule is broken. ``trace`` is the shortest way there, once the explorer has found it."""

    def __init__(self, rule: str, detail: object = "") -> None:
        super().__init__(rule, detail)
        self.rule = rule
        self.detail = detail
        self.trace: list[str] = []

    def __str__(self) -> str:
        return "\n  ".join((f"{self.rule}: {self.detail}", *self.trace))


def require(holds: bool, rule: str, detail: object = "") -> None:
    if not holds:
        raise Violation(rule, detail)


class Facts(NamedTuple):
    """What the world asks of a key's state, worked out once."""

    held: frozenset[tuple[str, str]]
    nonces: frozenset[tuple[str, str]]
    carried: frozenset[str]
    tokens: frozenset[int]
    due: bool
    empty: bool


def check_state(state: KeyState) -> Facts:
    """Check what holds between operations too; instants are past (0) or ahead."""
    live = [h for h in state.holders if h.expires > 0]
    waiting = [w.task for w in state.waiting]
    granted = [g.task for g in state.grants]
    readers = [h for h in live if h.mode is Mode.SHARED]
    require(len(readers) in (0, len(live)), "S1 never a reader together with a writer", state)
    if not readers:
        require(
            len(live) <= max((h.limit for h in live), default=0),
            "S1 never more holders than the limit",
            state,
        )
        require(len({h.slot for h in live}) == len(live), "S1 one holder a slot", state)
        require(len({h.token for h in live}) == len(live), "S1 one token a holder", state)
    tasks = [h.task for h in live]
    require(len(set(tasks)) == len(tasks), "S1 never two copies of one task", state)
    require(len(set(waiting)) == len(waiting), "Q one entry a task", state)
    require(len(set(granted)) == len(granted), "Q one grant a task", state)
    require(not set(waiting) & set(granted), "Q never granted and waiting", state)
    require(not set(tasks) & set(granted), "Q never granted while it runs", state)
    _check_reserved(state, live)
    places = {w.task for w in state.waiting if w.expires is not None}
    require(not places & set(tasks), "Q never a place for what runs", state)
    parked = sum(w.expires is None for w in state.waiting)
    require(state.parked == parked, "Q parked counts the parked entries", state)
    closed = bool(state.cooling) or state.hold is not None
    woken = bool(live or granted) or closed or due(state)
    require(not parked or woken, "S4 somebody will wake it", state)
    return Facts(
        held=frozenset((h.task, h.nonce) for h in state.holders if h.expires > 0),
        nonces=frozenset(
            [(h.task, h.nonce) for h in state.holders]
            + [(g.task, g.taker) for g in state.grants if g.taker]
        ),
        carried=frozenset(
            [w.task for w in state.waiting if w.expires is None]
            + [g.task for g in state.grants if g.parked]
        ),
        tokens=frozenset(h.token for h in state.holders) - {0},
        due=due(state),
        empty=not (state.holders or state.grants or state.waiting or state.cooling or state.hold),
    )


def _check_reserved(state: KeyState, live: list[Holder]) -> None:
    """Check that no more are called to have the key, or have it, than may, beside a hold."""
    taken: list[Holder | Grant] = [*live]
    turns = [g for g in state.grants if reserved(g)]
    taken += [g for g in turns if g.parked or g.due > 0]
    if all(t.mode is Mode.EXCLUSIVE for t in taken):
        most = max((t.limit for t in taken), default=0)
        require(len(taken) <= most, "Q no more are called than may", state)


def reserved(turn: Grant) -> bool:
    """Whether the slot is to be kept for *turn*."""
    strange = turn.handed_back is not None and turn.handed_back < -STRANGER_RESERVED
    stays_away = turn.woken > WAKES_RESERVED or strange
    return turn.ending is None and (turn.ordered or not stays_away)


def due(state: KeyState) -> bool:
    """Whether a sweeper has something to do."""
    return (
        any(h.expires <= 0 for h in state.holders)
        or any(g.due <= 0 for g in state.grants)
        or any(slot.until <= 0 for slot in state.cooling)
        or (state.hold is not None and state.hold.until <= 0)
        or any(w.expires is not None and w.expires <= 0 for w in state.waiting)
        or any(gave_up(w) for w in state.waiting if w.task not in _running(state))
    )


def gave_up(entry: Waiting) -> bool:
    """Whether *entry* has waited for too long."""
    return entry.gives_up is not None and entry.gives_up <= 0


def check_after(state: KeyState) -> None:
    """Check what every operation must have left behind."""
    running = _running(state)
    others = [w for w in state.waiting if w.task not in running]
    idle = any(w.expires is None for w in others) and fits(state, others[0])
    require(not idle, "S4 no slot stays free while a message waits that fits", state)
    late = [w for w in state.waiting if gave_up(w) and w.task not in running]
    require(not late, "S4 nobody waits who has waited for too long", state)


def check_patience(before: KeyState, after: KeyState) -> None:
    """Check that a turn keeps the patience of its message, and ends with it when it is called."""
    for waits in before.waiting:
        called = next((g for g in after.grants if g.task == waits.task and g.parked), None)
        if called is not None and called.ending is None:
            require(called.gives_up == waits.gives_up, "P a turn is as patient", (before, after))
    for turn in before.grants:
        if not turn.parked or turn.ending is not None or turn.gives_up is None:
            continue
        called = next((g for g in after.grants if g.task == turn.task), None)
        entry = next((w for w in after.waiting if w.task == turn.task and w.parked), None)
        if called is not None and called.ending is None:
            require(called.gives_up == turn.gives_up, "P a turn is as patient", (before, after))
            late = turn.due <= 0 and turn.gives_up <= 0
            require(not late, "P who was called in vain ends in time", (before, after))
        if entry is not None and turn.task not in _running(before) | _running(after):
            require(entry.gives_up == turn.gives_up, "P who waits on is as patient", entry)


def check_cooling(before: KeyState, after: KeyState, unused: str) -> None:
    """Check that who is gone, and is not *unused*, leaves its slot closed that has not cooled down.

    That is the owner of a claim under which no body has begun.
    """
    stay = {(h.task, h.token) for h in after.holders}
    gone = [h for h in before.holders if h.cools > 0 and (h.task, h.token) not in stay]
    gone = [h for h in gone if h.owner != unused]
    cooled = [slot for slot in before.cooling if slot.until > 0]
    cools = [slot for slot in after.cooling if slot.until > 0]
    require(len(cools) == len(gone) + len(cooled), "S9 a slot cools down", (before, after))


def check_hold(before: KeyState, after: KeyState) -> None:
    """Check that nobody is let in, or called to be, while a person keeps the key closed."""
    if before.hold is None or before.hold.until <= 0:
        return
    require(after.hold is not None, "S11 a hold lasts", (before, after))
    had = {(h.task, h.token) for h in before.holders}
    came = [h for h in after.holders if (h.task, h.token) not in had]
    require(not came, "S11 nobody is let in on hold", (before, after))
    turns = {g.task for g in before.grants}
    called = [g for g in after.grants if g.task not in turns and g.waits and g.ending is None]
    require(not called, "S11 nobody is called on hold", (before, after))


def check_newest(before: KeyState, claim: Claim, step: Step[EnterVerdict]) -> None:
    """Check that who waits replaces who runs, and who was replaced does not run again."""
    gave_way = {g.task for g in before.grants if g.by and (g.parked or g.due > 0)}
    if isinstance(step.verdict, Run):
        require(claim.task not in gave_way, "S10 who gave way does not run", (claim, step))
    if isinstance(step.verdict, End) and claim.task in gave_way:
        require(bool(step.verdict.by), "S10 it is told for whom", step)
    known = {w.task for w in before.waiting} | _started(before) | {g.task for g in before.grants}
    if claim.supersedes and isinstance(step.verdict, Park) and claim.task not in known:
        later = [h.replaced_by for h in step.state.holders] + [
            g.by for g in step.state.grants if reserved(g) and g.task != claim.task
        ]
        require(set(later) <= {claim.task}, "S10 the newest is waited for by nobody", step)


def check_gave_way(before: KeyState, after: KeyState) -> None:
    """Check that of who was replaced and is gone it is known, unless it is done or over."""
    stay = {(h.task, h.token) for h in after.holders}
    for gone in before.holders:
        if gone.replaced_by and gone.expires <= 0 and (gone.task, gone.token) not in stay:
            known = {g.task for g in after.grants if g.by and g.ending}
            over = gone.task in after.done
            require(over or gone.task in known, "S10 it is known who gave way", (before, after))


def fits(state: KeyState, entry: Waiting) -> bool:
    """Whether *entry* could hold the key beside all holders and grants."""
    if state.hold is not None:
        return False
    taken: list[Holder | Grant | Cooling] = [*state.holders, *state.cooling]
    taken += [g for g in state.grants if reserved(g)]
    if entry.mode is Mode.SHARED:
        return all(t.mode is Mode.SHARED for t in taken)
    if any(t.mode is Mode.SHARED for t in taken):
        return False
    return len(taken) + 1 <= min([entry.limit] + [t.limit for t in taken])


def check_enter(
    before: KeyState,
    claim: Claim,
    step: Step[EnterVerdict],
    again: Step[EnterVerdict],
    *,
    same: bool,
) -> None:
    """Check a verdict, and the one that the same delivery gets when it asks again."""
    mine = [h for h in step.state.holders if (h.task, h.nonce) == (claim.task, claim.nonce)]
    asked = any(
        (h.task, h.nonce) == (claim.task, claim.nonce) and h.expires > 0 for h in before.holders
    )
    if isinstance(step.verdict, Run):
        require(len(mine) == 1, "R who is told to run holds the key", step)
        require(claim.wait is not WaitMode.ENQUEUE, "Q who publishes does not run", step)
        if not asked:
            require(claim.task not in before.done, "S3 no body starts after done", claim)
            behind = claim.task in {w.task for w in step.state.waiting[1:]}
            require(not behind, "S6 what runs is kept at the head", step)
            _check_admitted(claim, before)
    if claim.wait in (WaitMode.QUEUE, WaitMode.ENQUEUE):
        require(not isinstance(step.verdict, Same), "Q who queues is parked", step)
        full = isinstance(step.verdict, Busy) and step.verdict.full
        require(full or not isinstance(step.verdict, Busy), "Q who queues is parked", step)
        _check_room(before, claim, step)
    elif isinstance(step.verdict, Park):
        was = any(g.task == claim.task and g.parked for g in before.grants)
        require(was, "Q who does not queue is only put back where it was parked", step)
    if isinstance(step.verdict, Busy):
        running = {h.task for h in before.holders if h.expires > 0}
        require(claim.task not in running, "S7 a copy of what runs is told so", step)
    if isinstance(step.verdict, End):
        running = {h.task for h in before.holders if h.expires > 0}
        require(claim.task not in running, "S7 what runs is not ended", step)
        takers = {g.taker for g in before.grants if g.task == claim.task and g.due > 0}
        require(takers <= {"", claim.nonce}, "S7 one delivery brings an ending about", step)
    _check_started(before, claim, step)
    _check_asked_again(before, claim, step, again, same=same)


def _check_admitted(claim: Claim, before: KeyState) -> None:
    """Check that there was room beside all others."""
    held = [h for h in before.holders if h.expires > 0]
    require(all(h.task != claim.task for h in held), "S1 never two copies of one task", before)
    on_hold = before.hold is not None and before.hold.until > 0
    require(not on_hold, "S1 nobody starts on hold", (claim, before))
    room: list[Holder | Grant | Cooling] = [*held, *(s for s in before.cooling if s.until > 0)]
    room += [
        g for g in before.grants if g.task != claim.task and reserved(g) and (g.parked or g.due > 0)
    ]
    require(all(t.mode is claim.mode for t in room), "S1 readers and writers apart", before)
    if claim.mode is Mode.EXCLUSIVE:
        limit = min([claim.limit] + [t.limit for t in room])
        require(len(room) < limit, "S1 nobody starts where there is no slot", (claim, room))
    called = any(g.task == claim.task for g in before.grants)
    if not called and claim.task not in _started(before):
        live = {h.task for h in before.holders if h.expires > 0}
        others = [w for w in before.waiting if w.expires is None and w.task not in live]
        require(not others, "S6 a newcomer waits while others wait", (claim, before))


def _check_room(before: KeyState, claim: Claim, step: Step[EnterVerdict]) -> None:
    """Check that no more wait than may, but for copies and for those whose run was lost."""
    if not claim.max_waiting or claim.task in _started(before):
        return
    live = {h.task for h in before.holders if h.expires > 0}
    others = [w for w in before.waiting if w.task not in live and w.parked]
    full = len(others) >= claim.max_waiting
    told = isinstance(step.verdict, Busy) and step.verdict.full
    require(full or not told, "Q who is told so finds it full", step)
    waiting = [w for w in step.state.waiting if w.task not in _running(step.state) and w.parked]
    parked = isinstance(step.verdict, Park) and claim.task in {w.task for w in waiting}
    few = len(waiting) <= max(claim.max_waiting, len(others))
    require(few or not parked, "Q no more wait than may", step)


def _check_started(before: KeyState, claim: Claim, step: Step[EnterVerdict]) -> None:
    """Check that a lost run is remembered, and that its task waits before those without one."""
    dead = {h.task for h in before.holders if h.expires <= 0 and not h.replaced_by} - {claim.task}
    require(dead <= set(dict(step.state.lost)), "S6 a lost run is remembered", step)
    if isinstance(step.verdict, Park) and claim.task in _started(before):
        tasks = [w.task for w in step.state.waiting]
        ahead = tasks[: tasks.index(claim.task)] if claim.task in tasks else []
        require(set(ahead) <= _started(before), "S6 who had started waits at the head", step)


def _running(state: KeyState) -> set[str]:
    return {h.task for h in state.holders}


def _started(state: KeyState) -> set[str]:
    return {task for task, _ in state.lost} | {h.task for h in state.holders}


def _check_asked_again(
    before: KeyState,
    claim: Claim,
    step: Step[EnterVerdict],
    again: Step[EnterVerdict],
    *,
    same: bool,
) -> None:
    verdict, both = step.verdict, (step, again)
    grant = next((g for g in step.state.grants if g.task == claim.task), None)
    if claim.wait is WaitMode.ENQUEUE:
        kept = Drop if isinstance(verdict, Park) else type(verdict)
        require(isinstance(again.verdict, kept), "R asked again, the same verdict", both)
        return
    if grant is not None:
        if grant.ending is not None:  # which is this one's to bring about, or another's
            ending: type = End if grant.taker in ("", claim.nonce) else Drop
            require(isinstance(again.verdict, ending), "R asked again, the same verdict", both)
            return
        # It was called in this very operation, so asking again takes the grant, if it still fits.
        same_terms = (grant.mode, grant.limit) == (claim.mode, claim.limit)
        taken = isinstance(again.verdict, Run) or not same_terms
        require(taken, "R the grant is taken when asked again", both)
        return
    if isinstance(verdict, Busy) and isinstance(again.verdict, Run):
        # It was refused for the sake of those who waited or had their turn. They were called, and
        # there was room; or whoever does not come has lost the slot as the operation ended.
        stays_away = sum(map(reserved, before.grants)) > sum(map(reserved, step.state.grants))
        called = before.parked > step.state.parked
        require(called or stays_away, "R asked again, the same verdict", both)
        return
    require(same, "R asking again changes nothing", both)
    expected: type = Drop if isinstance(verdict, Park) else type(verdict)
    require(isinstance(again.verdict, expected), "R asked again, the same verdict", both)
    if isinstance(verdict, Run):
        require(again.verdict == verdict, "R asked again, the same slot and token", both)


def check_leave(
    before: KeyState,
    claim: Claim,
    outcome: Outcome,
    step: Step[LeaveVerdict],
    again: Step[LeaveVerdict],
    *,
    same: bool,
) -> None:
    """Check that a final outcome is remembered, and what leaving twice comes to."""
    if outcome is Outcome.DONE:
        require(claim.task in step.state.done, "S3 what is done is remembered", step)
        waits = {entry.task for entry in step.state.waiting}
        waits |= {turn.task for turn in step.state.grants}
        require(claim.task not in waits, "S5 what is done is not called again", step)
    again_is_due = outcome in (Outcome.ABANDONED, Outcome.UNUSED) or (
        outcome is Outcome.REPEAT and claim.wait in (WaitMode.QUEUE, WaitMode.LOOK)
    )
    replaced = [h for h in before.holders if h.task == claim.task and h.replaced_by]
    if again_is_due and isinstance(step.verdict, Left) and not replaced:
        require(claim.task in dict(step.state.lost), "S6 a lost run is remembered", step)
    require(same and not again.wakes, "R leaving twice changes nothing", (step, again))
    require(isinstance(again.verdict, NotHeld), "R who left has nothing to leave", again)
    require(again.verdict.carried == step.verdict.carried, "R carried stays", (step, again))
