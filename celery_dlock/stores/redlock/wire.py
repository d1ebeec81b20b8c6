"""What goes to the nodes of a Redlock and what comes back."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from celery_dlock.core.state import Claim, EnterVerdict, Holder, LeaveVerdict, Outcome, Run
from celery_dlock.stores.base import Clock, Reply
from celery_dlock.stores.redis import wire
from celery_dlock.stores.redis.client import packed
from celery_dlock.stores.redis.scripts import ENTER, LEAVE, RENEW, RULES, Script, in_full
from celery_dlock.stores.redlock.node import FORGOT
from celery_dlock.stores.unreadable import NONSENSE

V = TypeVar("V")
Argument = str | int | bytes

# Of the nodes, each for itself.
_NODE = ("clock", "write_holder", "rows", "state", "redlock_node")
_JOIN = Script.of(*_NODE, "redlock_join")
_LOOK = Script.of(*_NODE, "redlock_look")
_RAISE = Script.of(*_NODE, "redlock_raise")
_TAKE = Script.of(*_NODE, "redlock_take")
_RENEW = Script.of(*_NODE, "redlock_renew")
_FREE = Script.of(*_NODE, "redlock_free")
_HOLDERS = Script.of(*_NODE, "redlock_holders")
_HELD = Script.of(*_NODE, "redlock_held")
# Of the queue, whose other scripts are those of a single Redis.
_REFUSED = Script.of(*RULES, "claim", "redlock_refused")
_GIVEN = Script.of(*RULES, "claim", "redlock_given")


@dataclass(frozen=True, slots=True)
class Look:
    """What one node knows: whether it votes, and, in microseconds, its time and longest lease."""

    votes: bool
    raised: bool
    born: bytes
    now: int
    counter: int
    longest: int
    holders: tuple[Holder, ...]

    def of(self, claim: Claim) -> Holder | None:
        """How *claim* holds its key here, if it does."""
        for holder in self.holders:
            if is_of(holder, claim):
                return holder
        return None


class ScriptCall:
    """A script with its arguments, packed once for any number of nodes: redis-py would for each."""

    __slots__ = ("_command", "packed")

    def __init__(self, script: Script, keys: Sequence[str], args: Sequence[Argument]) -> None:
        self._command = script.on(keys, args)
        self.packed = packed(self._command)

    def in_full(self) -> bytes:
        """For a server that does not have the script."""
        return packed(in_full(self._command))


class Wire:
    """The calls of one application; those of one flight are made once, for all nodes."""

    def __init__(self, prefix: str, clock: Clock | None) -> None:
        self._prefix = prefix
        self._clock = clock
        self._node = f"{prefix}:redlock:node"

    def greeting(self) -> list[bytes]:
        """What a new connection begins with."""
        scripts = (_LOOK, _TAKE, _RENEW, _FREE)
        return [
            ScriptCall(_JOIN, [self._node], [""]).in_full(),
            *(packed(("SCRIPT", "LOAD", script.text)) for script in scripts),
        ]

    def look(self, key: str) -> ScriptCall:
        return ScriptCall(_LOOK, [self._node, self._lock(key)], [self._now(), uuid.uuid4().hex])

    def raised(self, look: Look, counter: int, longest: int, silent: int) -> ScriptCall:
        return ScriptCall(_RAISE, [self._node], [self._now(), look.born, counter, longest, silent])

    def take(self, claim: Claim, slot: int, token: int, *, renewed: bool = False) -> ScriptCall:
        args: list[Argument] = [self._now(), claim.task, claim.nonce, wire.MODE_CODES[claim.mode]]
        args += [claim.limit, slot, token, claim.ttl, int(renewed)]
        return ScriptCall(_TAKE, [self._node, self._lock(claim.key)], args)

    def renew(self, claims: Sequence[Claim]) -> ScriptCall:
        keys = [self._node, *(self._lock(claim.key) for claim in claims)]
        return ScriptCall(_RENEW, keys, self._terms(claims))

    def free(self, claim: Claim, *, through: bool) -> ScriptCall:
        """Release: all that *claim* has when it is *through*, else what it has just taken."""
        keys = [self._node, self._lock(claim.key)]
        return ScriptCall(_FREE, keys, [self._now(), claim.task, claim.nonce, int(through)])

    def enter(self, claim: Claim, message: bytes | None) -> ScriptCall:
        return ScriptCall(ENTER, [self._state(claim)], self._claim(claim, message))

    def leave(self, claim: Claim, outcome: Outcome, message: bytes | None) -> ScriptCall:
        args = [*self._claim(claim, message), outcome.value]
        return ScriptCall(LEAVE, [self._state(claim)], args)

    def keep(self, claims: Sequence[Claim]) -> ScriptCall:
        """The queue's side of a renewal."""
        keys = [self._state(claim) for claim in claims]
        return ScriptCall(RENEW, keys, self._terms(claims))

    def refused(
        self, claim: Claim, message: bytes | None, why: str, holders: Collection[Holder], most: int
    ) -> ScriptCall:
        """The queue's side of a claim that has not won; it respects *holders* for *most* at most.

        They get names that no task has: their own deliveries know nothing of these entries.
        """
        args: list[Argument] = [*self._claim(claim, message), why]
        for holder in holders:
            args += [
                holder.owner,
                wire.MODE_CODES[holder.mode],
                most,
            ]
        return ScriptCall(_REFUSED, [self._state(claim)], args)

    def given(self, claim: Claim, run: Run) -> ScriptCall:
        """To the queue, that a majority gave *claim* something else than it had proposed."""
        args = [*self._claim(claim, None), run.slot, run.token]
        return ScriptCall(_GIVEN, [self._state(claim)], args)

    def holders(self, keys: Sequence[str]) -> ScriptCall:
        """Who holds each of *keys* at a node."""
        return ScriptCall(_HOLDERS, [self._node, *map(self._lock, keys)], [self._now()])

    def held(self, at: int, count: int) -> ScriptCall:
        """Keys that are held at a node, of its next *count* names."""
        arguments = [self._now(), at, wire.pattern(self._prefix, "lock"), count]
        return ScriptCall(_HELD, [self._node], arguments)

    def _lock(self, key: str) -> str:
        return f"{wire.base_name(self._prefix, key)}:lock"

    def _state(self, claim: Claim) -> str:
        """All that the queue is told of a key: its scripts make the other names from this one."""
        return wire.state_of(self._prefix, claim.key)

    def _claim(self, claim: Claim, message: bytes | None) -> list[Argument]:
        return [self._now(), *wire.claim_arguments(claim, message)]

    def _terms(self, claims: Sequence[Claim]) -> list[Argument]:
        return [self._now(), *wire.renew_arguments(claims)]

    def _now(self) -> Argument:
        """Empty for each node's own time, which is what counts outside tests."""
        return "" if self._clock is None else self._clock()


def is_of(holder: Holder, claim: Claim) -> bool:
    return (holder.task, holder.nonce) == (claim.task, claim.nonce)


# Replies. None stands for a node, or a queue, whose answer is none.


def look(reply: Any) -> Look | None:
    match reply:
        case [int(stands), bytes(born), int(now), int(counter), int(longest), list(rows)]:
            return Look(stands > 0, stands >= 0, born, now, counter, longest, _holders(rows))
        case _:
            return None


def votes(reply: Any) -> bool:
    """Whether the node that was looked at votes."""
    return isinstance(reply, list) and reply[:1] == [1]


@dataclass(frozen=True, slots=True)
class Vote:
    """What one node says that did not let a claim hold: who is in the way, or that it forgot."""

    rivals: tuple[Holder, ...] = ()
    forgot: bool = False


def vote(reply: Any) -> Vote:
    return Vote(_holders(reply) if isinstance(reply, list) else (), reply == FORGOT)


def token(reply: Any) -> int | None:
    """The token with which a claim holds at a node; ``None`` where it does not."""
    return reply if isinstance(reply, int) and reply >= 0 else None


def entered(key: str, reply: Any) -> Reply[EnterVerdict] | None:
    return _read(key, reply, wire.entered)


def left(key: str, reply: Any) -> Reply[LeaveVerdict] | None:
    return _read(key, reply, wire.left)


def _read(key: str, reply: Any, read: Callable[[str, Any], Reply[V]]) -> Reply[V] | None:
    try:
        return read(key, reply)
    except NONSENSE:
        return None


@dataclass(frozen=True, slots=True)
class Extended:
    """One node's renewal of one claim."""

    expires: int
    slot: int
    token: int


def renewed(reply: Any, asked: int) -> list[Extended | None] | None:
    """One for each claim, ``None`` for one that the node does not have."""
    if not isinstance(reply, list) or len(reply) != asked:
        return None
    return [Extended(*row) if isinstance(row, list) else None for row in reply]


def replaced(reply: Any, asked: int) -> list[str | None]:
    """To whom each claim is asked to give way, by the queue's renewal."""
    newer = reply if isinstance(reply, list) and len(reply) == asked else [None] * asked
    return [end.decode() if isinstance(end, bytes) else None for end in newer]


def holders(reply: Any, asked: int) -> list[tuple[Holder, ...]] | None:
    """Who holds each of the keys that a node was asked about."""
    if not isinstance(reply, list) or len(reply) != asked:
        return None
    return [_holders(rows) for rows in reply]


def _holders(rows: list[Any]) -> tuple[Holder, ...]:
    return tuple(map(wire.holder_from, rows))
