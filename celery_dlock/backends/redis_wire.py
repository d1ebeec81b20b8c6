"""What goes to Redis and what comes back: scripts, key names, claims, verdicts.

The scripts are the rules of :mod:`celery_dlock.core.machine` in Lua, kept as ``.lua`` files; their
constants come from the Python side, so that there is one place for each.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any

from celery_dlock.backends.base import Burial, Swept, Wake
from celery_dlock.backends.change import REMEMBER_LOST
from celery_dlock.core.lease import SECOND
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.state import (
    WINDOW,
    Busy,
    Cause,
    Claim,
    Dead,
    Drop,
    End,
    Ending,
    EnterVerdict,
    Grant,
    Holder,
    KeyState,
    LeaveVerdict,
    Left,
    Lost,
    Mode,
    Park,
    Reason,
    Renewed,
    RenewVerdict,
    Run,
    Same,
    Waiting,
)
from celery_dlock.core.turns import CALL_AGAIN_FIRST, CALL_AGAIN_LAST
from celery_dlock.core.upkeep import CALL_ELSEWHERE, CALLS_BEFORE_DEAD

#: What is stored under a key; a later form gets the next number and so never meets this one.
SCHEMA = 1

#: Over so many hash slots the keys are spread; a sweep looks at the index of each.
SHARDS = 64

# One letter each: a mode lies in every waiting entry.
_CODES = {Mode.EXCLUSIVE: "x", Mode.SHARED: "s"}
_MODES = {code.encode(): mode for mode, code in _CODES.items()}
_ENDING_CODES = {Ending.TIMED_OUT: "t", Ending.DROPPED: "d", Ending.REVOKED: "r"}
_ENDINGS = {code.encode(): ending for ending, code in _ENDING_CODES.items()}

_BRACES = re.compile(r"\{[{)]")

_CONSTANTS = f"""\
local WINDOW = {WINDOW}
local CALL_AGAIN_FIRST = {CALL_AGAIN_FIRST}
local CALL_AGAIN_LAST = {CALL_AGAIN_LAST}
local REMEMBER_LOST = {REMEMBER_LOST}
local EXCLUSIVE, SHARED = '{_CODES[Mode.EXCLUSIVE]}', '{_CODES[Mode.SHARED]}'
local TIMED_OUT = '{_ENDING_CODES[Ending.TIMED_OUT]}'
local DROPPED = '{_ENDING_CODES[Ending.DROPPED]}'
local REVOKED = '{_ENDING_CODES[Ending.REVOKED]}'
local RUNS_LOST = '{Cause.RUNS_LOST}'
local MAX_LOST_RUNS = {MAX_LOST_RUNS}
local CALLS_BEFORE_DEAD = {CALLS_BEFORE_DEAD}
local CALL_ELSEWHERE = {CALL_ELSEWHERE}
"""


def script(*names: str) -> str:
    """The text of one script, made of the named files in this order."""
    folder = files("celery_dlock.backends") / "lua"
    texts = ((folder / f"{name}.lua").read_text(encoding="utf-8") for name in names)
    return "\n".join((_CONSTANTS, *texts))


def base_name(prefix: str, key: str) -> str:
    """What all names of *key* begin with; the first braces put a shard into one slot of a cluster.

    A ``}`` would end the name of the key too early, so braces are written in another way; no two
    keys become the same.
    """
    return f"{_shard(prefix, shard_of(key))}:{{{_without_braces(key)}}}"


def shard_of(key: str) -> int:
    return zlib.crc32(key.encode(errors="surrogatepass")) % SHARDS


def _shard(prefix: str, number: int) -> str:
    return f"{_without_braces(prefix)}:{SCHEMA}:{{{number}}}"


def _without_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "{)")


def key_of(member: bytes) -> str:
    """The key whose name in the index of its shard is *member*."""
    return _BRACES.sub(lambda found: "}" if found[0] == "{)" else "{", member.decode()[1:-1])


def names(base: str, task: str | None = None) -> list[str]:
    """The parts of a key in Redis; *task* is the one of which it may be known that it is done."""
    parts = ["state", "queue", "entries", "lost", "token"]
    return [f"{base}:{part}" for part in parts] + ([] if task is None else [f"{base}:done:{task}"])


def touched(prefix: str, key: str, task: str = "") -> list[str]:
    """What the script of an operation may touch."""
    shard = _shard(prefix, shard_of(key))
    return [*names(base_name(prefix, key), task), f"{shard}:due", f"{shard}:dead"]


def indexes(prefix: str) -> list[str]:
    """The index of due keys of each shard."""
    return [f"{_shard(prefix, number)}:due" for number in range(SHARDS)]


def graves(prefix: str) -> list[str]:
    """The dead messages of each shard."""
    return [f"{_shard(prefix, number)}:dead" for number in range(SHARDS)]


def claim_arguments(claim: Claim, message: bytes | None) -> list[str | int | bytes]:
    return [
        claim.task,
        claim.nonce,
        _CODES[claim.mode],
        claim.limit,
        claim.ttl,
        claim.wait.value,
        claim.patience,
        claim.lock_delay,
        claim.done_ttl,
        claim.gives_up,
        claim.max_waiting,
        int(claim.drop_oldest),
        int(claim.keep),
        claim.successor,
        message or b"",
    ]


def enter_verdict(answer: Sequence[Any]) -> EnterVerdict:
    match answer:
        case [b"run", int(slot), int(token)]:
            return Run(slot, token)
        case [b"park"]:
            return Park()
        case [b"busy", row, int(left), int(parked), int(full)]:
            return Busy(None if row is None else _holder(row), left, parked, bool(full))
        case [b"same", row, int(left)]:
            return Same(_holder(row), left)
        case [b"end", bytes(code)]:
            return End(_ENDINGS[code])
        case [b"drop", bytes(reason)]:
            return Drop(Reason(reason.decode()))
        case _:
            raise ValueError(f"no verdict: {answer!r}")


def leave_verdict(answer: Sequence[Any]) -> LeaveVerdict:
    match answer:
        case [b"left", int(carried)]:
            return Left(bool(carried))
        case [b"lost", int(carried)]:
            return Lost(bool(carried))
        case _:
            raise ValueError(f"no verdict: {answer!r}")


def renew_verdicts(answer: Sequence[Any], asked: int) -> list[RenewVerdict]:
    ends = [int(end) for end in answer]
    if len(ends) != asked:
        raise ValueError(f"{len(ends)} verdicts for {asked} claims")
    return [Renewed(end) if end else Lost() for end in ends]


def wakes(key: str, answer: Sequence[Any]) -> tuple[Wake, ...]:
    return tuple(Wake(key, task.decode(), message, _ending(code)) for task, message, code in answer)


def swept(answer: Sequence[Any]) -> Swept:
    reaped, later = answer
    called = tuple(wake for member, rows in reaped for wake in wakes(key_of(member), rows))
    return Swept(called, None if later is None else later / SECOND)


def burials(grave: Mapping[bytes, bytes]) -> list[Burial]:
    """The dead of one shard."""
    return [_burial(name, value) for name, value in grave.items()]


def _burial(name: bytes, value: bytes) -> Burial:
    key, brace, task = name.partition(b"}")  # the name of a key has one only at its end
    head, _, message = value.partition(b";")
    mode, limit, cause, at = head.split(b",")
    dead = Dead(task.decode(), _MODES[mode], int(limit), Cause(cause.decode()), int(at))
    return Burial(key_of(key + brace), dead, message)


def key_state(answer: Sequence[Any]) -> KeyState:
    holders, grants, queue, parked, lost = answer
    waiting = tuple(_waiting(row) for row in queue)
    return KeyState(
        holders=tuple(_holder(row) for row in holders),
        grants=tuple(_grant(row) for row in grants),
        waiting=waiting,
        parked=parked,
        first=waiting[0].rank if waiting else 0,
        last=waiting[-1].rank if waiting else 0,
        lost=tuple((task.decode(), count) for task, count in lost),
    )


def _ending(code: bytes | None) -> Ending | None:
    return None if code is None else _ENDINGS[code]


def _holder(row: Sequence[Any]) -> Holder:
    task, nonce, mode, *numbers = row
    return Holder(task.decode(), nonce.decode(), _MODES[mode], *numbers)


def _grant(row: Sequence[Any]) -> Grant:
    task, mode, limit, parked, calls, due, code, taker = row
    ending = _ending(code)
    return Grant(
        task.decode(), _MODES[mode], limit, bool(parked), calls, due, ending, taker.decode()
    )


def _waiting(row: Sequence[Any]) -> Waiting:
    task, mode, *numbers = row
    return Waiting(task.decode(), _MODES[mode], *numbers)
