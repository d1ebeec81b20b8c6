"""Debounced calls: a message waits until no newer one has come for a while, which takes its place.

They wait at a key of their own, one for each kind of call, which no task locks. There the slot
cools down until the message is due. Then the ordinary rules let it in: it is
woken, and asks for the lock of its task. From then on it has begun, and the next call waits anew.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from celery_dlock.core.canonical import canonical
from celery_dlock.core.checks import duration
from celery_dlock.core.edits import carried, insert, leave_queue, messages
from celery_dlock.core.keys import Key
from celery_dlock.core.state import WINDOW, Claim, Cooling, KeyState, Step
from celery_dlock.core.turns import expire, settle
from celery_dlock.errors import ConfigurationError

#: What the keys begin with at which calls are debounced; no key of a lock has such a sign.
DEBOUNCED = "debounced|"

#: What the slot is called that stays closed until a call is due; no nonce of a holder is that.
UNTIL_DUE = "debounced"


def named(key: str) -> str:
    """*key* as the stores see it, should it be one of these or a lock's.

    Raises :exc:`~celery_dlock.ConfigurationError` for what can be neither.
    """
    mark = DEBOUNCED if key.startswith(DEBOUNCED) else ""
    return mark + canonical(key.removeprefix(mark))


@dataclass(frozen=True, slots=True)
class Debounce:
    """A call runs when no newer one has come for *delay* seconds, with the newest arguments.

    It runs no later than *max_delay* seconds after the first call. Calls that lock the same key
    belong together; with *by*, a template or callable written like a task's key, calls for which
    its value is the same. Raises :exc:`~celery_dlock.ConfigurationError`.
    """

    delay: float
    max_delay: float
    by: Key | None = None

    def __post_init__(self) -> None:
        duration("delay", self.delay)
        duration("max_delay", self.max_delay)
        if self.max_delay < self.delay:
            raise ConfigurationError(
                f"max_delay={self.max_delay!r} of a debounced task is shorter than its "
                f"delay={self.delay!r}"
            )


@dataclass(frozen=True, slots=True)
class Postponed:
    """The verdict on a debounced call: its message waits, as that of *task*."""

    task: str


def postpone(
    state: KeyState, claim: Claim, delay: int, max_delay: int, now: int
) -> Step[Postponed]:
    """The message of *claim* takes the place of the one that waits, or waits itself."""
    state = expire(state, now)
    own = next((w for w in messages(state) if w.task == claim.task), None)
    head = replace(state, waiting=state.waiting[:WINDOW])  # beyond it not all are loaded
    entry = own or next(iter(messages(head)), None)
    if own is None and carried(state, claim.task):  # nobody heard the answer, and it has begun
        state, wakes = settle(state, now)
        return Step(state, Postponed(claim.task), wakes)
    if entry is None:
        state = insert(leave_queue(state, claim.task), claim, now, state.last + 1, None)
        task, since = claim.task, now
    else:
        task, since = entry.task, entry.arrived
    state = _closed(state, claim, min(now + delay, since + max_delay), now)
    state, wakes = settle(state, now)
    return Step(state, Postponed(task), wakes, rewrites=task)


def _closed(state: KeyState, claim: Claim, due: int, now: int) -> KeyState:
    """The slot stays closed until *due*, and no longer for the call before."""
    others = tuple(slot for slot in state.cooling if slot.name != UNTIL_DUE)
    slot = Cooling(UNTIL_DUE, claim.mode, 1, due)
    return replace(state, cooling=(*others, slot) if due > now else others)
