"""What people do to locks by hand, and how the page finds each action by what its form names."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from celery_dlock.beat.leader import Status
from celery_dlock.core.operations import Cancel, Leave, OpenSlot
from celery_dlock.core.state import Claim, Left, Mode, Outcome, task_id_of
from celery_dlock.ops import unique
from celery_dlock.ops.action import Action, NotSoAnyMore, apply, check_no_beat, readable
from celery_dlock.ops.dead_letters import discard, replay
from celery_dlock.ops.event_text import lasting
from celery_dlock.ops.facts import look_through
from celery_dlock.ops.holds import end_hold, hold
from celery_dlock.ops.overview import Held, instant
from celery_dlock.ops.plain_text import one_line, shown
from celery_dlock.runtime import runtime

#: What becomes of a holder whose key is released.
RELEASED = (
    "The key is free for the next task, as if this lease had expired now.",
    "A running body goes on until its next renewal, at most a third of its ttl from now. Then its "
    'lease is lost; with on_lost="abort" the body is aborted.',
    "Its fenced writes are refused from the next holder's first fenced write on.",
    "Its other writes are NOT stopped: two bodies may write at once.",
    "If the store keeps its message (keep=True) the task runs again, and this run counts as lost.",
)

#: What becomes of a task that is cancelled.
CANCELLED = (
    "It ends as revoked, and its result says so.",
    "If it runs already, it goes on. A duplicate that is still at the broker will come.",
)


def release(app: Any, key: str, owner: str) -> Action:
    """Take *key* from its holder *owner*, as if its lease had expired now."""
    check_no_beat(key)
    nothing = f"Nothing was done: {shown(task_id_of(owner))} no longer holds {shown(key)}"
    holders = {holder.owner: holder for holder in readable(app, key).line.holders}
    if owner not in holders:
        raise NotSoAnyMore(nothing)
    holder = holders[owner]

    def do(_: str) -> bool:
        task, _, nonce = owner.rpartition("|")
        # What a person takes away does not cool down: who is next may be what it was taken for.
        claim = Claim(key, task, nonce, ttl=0, mode=holder.mode, limit=holder.limit, begun=False)
        return isinstance(apply(app, Leave(claim, Outcome.ABANDONED)), Left)

    about = {"task_id": holder.task_id, "task_name": holder.name, "worker": holder.where}
    lease = {"token": holder.token or None, "since": holder.since, "expires": holder.expires}
    return Action(
        name="release",
        title="Release the key",
        names={"key": key, "owner": owner},
        order=f"take {shown(key)} from task {shown(holder.task_id)}",
        facts={"key": key, **about, "mode": holder.mode, **lease},
        consequences=RELEASED,
        done=f"{shown(key)} is released; {who_holds(holder)} had it",
        nothing=nothing,
        do=do,
    )


def who_holds(holder: Held) -> str:
    """A holder for people: its task, where it runs, and its token."""
    token = "reads" if holder.mode is Mode.SHARED else f"token {holder.token}"
    about = [shown(text) for text in (holder.name, holder.where) if text]
    return f"{shown(holder.task_id)} ({', '.join([*about, token])})"


def end_cooldown(app: Any, key: str, slots: str = "") -> Action:
    """Open the *slots* of *key* that are cooling down, by default all of them; wake who waits."""
    details = readable(app, key)
    until = {slot.name: instant(slot.until) for slot in details.line.cooling}
    closed = [name for name in until if until[name] > details.now]
    nothing = f"Nothing was done: {shown(key)} is not cooling down in this way"
    if not closed or slots not in ("", " ".join(closed)):
        raise NotSoAnyMore(nothing)
    what = "where a call is debounced" if details.line.debounces else "which is cooling down"
    left = lasting((until[closed[0]] - details.now).total_seconds())
    return Action(
        name="end_cooldown",
        title="Open the key",
        names={"key": key, "slots": " ".join(closed)},
        order=f"open {shown(key)}, {what} for another {left}",
        facts={"key": key, "until": until[closed[0]]},
        consequences=("The next task gets the key now.",),
        done=f"{shown(key)} is open",
        nothing=nothing,
        do=lambda _: sum(apply(app, OpenSlot(key, name)) for name in closed) > 0,
    )


def cancels(app: Any, task_id: str) -> list[Action]:
    """End the unique claims of a task, and its messages that wait in the store.

    If the store has none, the keys that are reserved for it, among the first ten thousand in use,
    are released.
    """
    store = runtime(app).existing_store()
    claims = unique.living(store, task_id=task_id)
    ended = [end_claim(app, claim.claim, task_id) for claim in claims]
    if parked := store.parked([task_id]):
        return ended + [cancel(app, *message) for message in parked]
    states, _, _ = look_through(store, [task_id])
    turns = ((key, turn) for key, state in states.items() for turn in state.grants)
    reserved = ((key, turn.task) for key, turn in turns if turn.waits and not turn.parked)
    return ended + [
        cancel(app, key, task, is_elsewhere=True)
        for key, task in reserved
        if task_id_of(task) == task_id
    ]


def cancel(app: Any, key: str, task: str, *, is_elsewhere: bool = False) -> Action:
    """Have the message of *task* end as revoked instead of waiting on.

    A key that is reserved for what *is_elsewhere* is free at once; the task ends when it comes.
    """
    readable(app, key)
    task_id = shown(task_id_of(task))
    done = f"{task_id} is woken and will end as revoked"
    if is_elsewhere:
        done = f"{shown(key)} is released; {task_id} ends as revoked when its message comes"
    return Action(
        name="cancel",
        title="Cancel the task",
        names={"key": key, "task": task},
        order=f"cancel {task_id}, which waits for {shown(key)}",
        facts={"key": key, "task_id": task_id_of(task)},
        consequences=CANCELLED,
        done=done,
        nothing=f"Nothing was done: {task_id} no longer waits for {shown(key)}",
        do=lambda _: apply(app, Cancel(key, task)),
    )


def end_claim(app: Any, claim: str, task_id: str) -> Action:
    """End the unique claim of a task, as if the task had ended."""
    return Action(
        name="end_claim",
        title="End the unique claim",
        names={"claim": claim, "task_id": task_id},
        order=f"end the unique claim of {shown(task_id)}, {shown(claim)}",
        facts={"claim": claim, "task_id": task_id},
        consequences=("The next call is published, also if this task has not ended.",),
        done=f"the unique claim has ended: the next call of {shown(claim)} is published",
        nothing=f"Nothing was done: {shown(task_id)} no longer has the unique claim {shown(claim)}",
        do=lambda _: unique.end(app, claim, task_id),
    )


def step_down(app: Any, owner: str = "") -> Action:
    """Ask the beat that leads, which is *owner* if it is given, to hand the lead to another one."""
    status = Status.of(app)
    if status.holder is None:
        raise NotSoAnyMore("no beat leads: start one with `celery beat -S dlock`")
    leader, nothing = one_line(status.leader or ""), f"{shown(task_id_of(owner))} no longer leads"
    if owner not in ("", status.holder.owner):
        raise NotSoAnyMore(nothing)
    if not status.standbys:
        raise NotSoAnyMore(f"no beat stands by to take over from {leader}")
    return Action(
        name="step_down",
        title="Have the beat step down",
        names={"owner": status.holder.owner},
        order=f"hand the lead of {leader} to another beat",
        facts={"key": status.key, "leader": status.leader, "since": status.since},
        consequences=("It stops within a second, and a beat that stands by leads.",),
        done=f"{leader} is asked to step down",
        nothing=f"{leader} no longer leads",
        do=lambda _: status.ask_to_step_down(runtime(app).backend),
    )


#: What finds an action again, by its name: from what it names, and what a person has filled in.
ACTIONS: Mapping[str, Callable[..., Action]] = {
    "release": release,
    "hold": hold,
    "end_hold": end_hold,
    "end_cooldown": end_cooldown,
    "cancel": cancel,
    "end_claim": end_claim,
    "replay": replay,
    "discard": discard,
    "step_down": step_down,
}
