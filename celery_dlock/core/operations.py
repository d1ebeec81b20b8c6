"""What can be asked of a key, as values: a store commits one of them.

Each says whose key it is about, which message it brings, and by which rule the next state follows.
A store loads what concerns its task, applies the rule, and keeps what came out, so a new operation
is one value here and one rule, and no store has to learn of it. Redis has the rules in Lua.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Protocol, Self, TypeVar

from celery_dlock.core import debounce, machine, upkeep
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
    Step,
)

V_co = TypeVar("V_co", covariant=True)


class Operation(Protocol[V_co]):
    """Something that is asked of one key, and answered with a verdict of its own kind."""

    @property
    def claim(self) -> Claim:
        """The claim that it is about; one without a nonce asks for no key."""
        ...

    @property
    def message(self) -> bytes | None:
        """The message that the store keeps if the rule lets it wait."""
        ...

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[V_co]:
        """The next state and the verdict; *token* is the fencing token of a grant made now."""
        ...

    def again(self) -> Operation[V_co]:
        """The operation to send if the answer to this one was lost."""
        ...


@dataclass(frozen=True, slots=True)
class Enter:
    """Ask for the key; *message* is what a verdict ``Park`` leaves with the store.

    So does a verdict ``Run`` of a claim with ``keep``, until it leaves. A message that the store
    has of this task already is replaced only by one of a claim that asks for that.
    """

    claim: Claim
    message: bytes | None = None

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[EnterVerdict]:
        return machine.enter(state, self.claim, now, token)

    def again(self) -> Enter:
        return self


@dataclass(frozen=True, slots=True)
class Leave:
    """Release the key; *message* is what goes back to the head of the queue on ``REPEAT``.

    With ``claim.successor`` the key stays reserved for that task, and it is woken if its message
    waits already. With ``claim.again`` it is answered as the first time, of which the answer was
    lost: a store that repeats a request by itself asks :meth:`again` for the second one.
    """

    claim: Claim
    outcome: Outcome
    message: bytes | None = None

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[LeaveVerdict]:
        return machine.leave(state, self.claim, self.outcome, now)

    def again(self) -> Leave:
        return replace(self, claim=replace(self.claim, again=True))


@dataclass(frozen=True, slots=True)
class Renew:
    """Extend the lease by the claim's own ttl. Stores are asked for many at a time."""

    claim: Claim
    message: None = None

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[RenewVerdict]:
        return machine.renew(state, self.claim, now)

    def again(self) -> Renew:
        return self


@dataclass(frozen=True, slots=True)
class Postpone:
    """Debounce a call: its *message* is due in *delay*, and replaces the one that waits.

    Which is due no later than *max_delay* after it came.
    """

    claim: Claim
    message: bytes
    delay: int
    max_delay: int

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[debounce.Postponed]:
        return debounce.postpone(state, self.claim, self.delay, self.max_delay, now)

    def again(self) -> Postpone:
        return self


@dataclass(frozen=True, slots=True)
class _Upkeep:
    """Changes something for *task* without asking for the key."""

    key: str
    task: str

    @property
    def claim(self) -> Claim:
        return Claim(self.key, self.task, nonce="", ttl=0)

    @property
    def message(self) -> None:
        return None

    def again(self) -> Self:
        return self


@dataclass(frozen=True, slots=True)
class Reap(_Upkeep):
    """Let time pass on the key: drop what has expired, wake the next."""

    task: str = ""

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[None]:
        return machine.reap(state, now)


@dataclass(frozen=True, slots=True)
class Cancel(_Upkeep):
    """Wake the task to end as revoked; whether its message waited for the key, or it was woken.

    If the key is only reserved for it, it ends when it comes. One that runs goes on, and one that
    is woken to end for another reason ends for that.
    """

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.cancel(state, self.task, now)


@dataclass(frozen=True, slots=True)
class DeadLetter(_Upkeep):
    """The task was woken and its message is of no use; whether it is dead now.

    That takes several wakes: another worker may be able to read it.
    """

    cause: Cause

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.dead_letter(state, self.task, self.cause, now)


@dataclass(frozen=True, slots=True)
class HandBack(_Upkeep):
    """The task was woken, and another process has to publish it; whether it waits."""

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.hand_back(state, self.task, now)


@dataclass(frozen=True, slots=True)
class OnDeadLetter(_Upkeep):
    """Takes the task's dead letter off the list: for this a store loads it as well."""


@dataclass(frozen=True, slots=True)
class Replay(OnDeadLetter):
    """Forget that the task is done or lost runs; whether it was dead, and waits for the key again.

    If another message of it waits, that one stays, and the dead one is forgotten. So it is if a
    copy of what no worker could run has run.
    """

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.replay(state, self.task, now)


@dataclass(frozen=True, slots=True)
class Discard(OnDeadLetter):
    """Forget the task's dead letter; whether there was one.

    For *done_ttl* the task counts as done, so that a duplicate of its message is dropped; but if
    another message of it waits, that one stays and runs.
    """

    done_ttl: int

    @property
    def claim(self) -> Claim:
        return Claim(self.key, self.task, nonce="", ttl=0, done_ttl=self.done_ttl)

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.discard(state, self.task, self.done_ttl, now)


@dataclass(frozen=True, slots=True)
class PutOnHold(_Upkeep):
    """For *lasts* microseconds no task gets the key: the person *by* wants that, *because* of it.

    A holder goes on. The hold *name*, which is unique, takes the place of the hold that *was* there
    (empty: none); the verdict is whether it has. With *lasts* 0 and no name the hold ends.
    """

    task: str = field(default="", init=False)
    was: str
    name: str
    by: str
    because: str
    lasts: int

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        hold = (self.was, self.name, self.by, self.because, self.lasts)
        return upkeep.put_on_hold(state, *hold, now)


@dataclass(frozen=True, slots=True)
class OpenSlot(_Upkeep):
    """Open now the slot that cools down by this *name*; whether it was closed."""

    task: str = field(default="", init=False)
    name: str

    def apply(self, state: KeyState, now: int, token: int = 0) -> Step[bool]:
        return upkeep.open_slot(state, self.name, now)
