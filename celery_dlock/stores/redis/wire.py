"""What goes to Redis and what comes back: key names, claims, verdicts."""

from __future__ import annotations

import json
import logging
import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache
from types import NoneType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

from celery_dlock.core.debounce import Postponed
from celery_dlock.core.lease import SECOND
from celery_dlock.core.operations import (
    Cancel,
    DeadLetter,
    Discard,
    Enter,
    HandBack,
    Leave,
    OpenSlot,
    Operation,
    Postpone,
    PutOnHold,
    Reap,
    Replay,
)
from celery_dlock.core.plain import is_plain, known_fields, others
from celery_dlock.core.state import (
    Busy,
    Claim,
    Cooling,
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
    Mode,
    NotHeld,
    OperatorHold,
    Park,
    Reason,
    Renewed,
    RenewVerdict,
    Replaced,
    Run,
    Same,
    Unknown,
    Waiting,
)
from celery_dlock.stores.base import DeadMessage, Reply, Swept, Wake
from celery_dlock.stores.stored import dead_or_unreadable, sound
from celery_dlock.stores.unreadable import NONSENSE, cause_of

logger = logging.getLogger("celery_dlock")

T = TypeVar("T")

#: What is stored under a key; a later form gets the next number and so never meets this one.
SCHEMA = 1

#: Over so many hash slots the keys are spread; a sweep looks at the index of each.
SHARDS = 64

# One letter each: a mode lies in every waiting entry.
MODE_CODES = {Mode.EXCLUSIVE: "x", Mode.SHARED: "s", Mode.LIMITED: "l"}
_MODES = {code.encode(): mode for mode, code in MODE_CODES.items()}
ENDING_CODES = {Ending.TIMED_OUT: "t", Ending.DROPPED: "d", Ending.REVOKED: "r"}
_ENDINGS = {code.encode(): ending for ending, code in ENDING_CODES.items()}

_json = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode

_BRACES = re.compile(r"\{[{)]")
_SPECIAL = re.compile(r"[*?\[\]\\]")
_MEMBER = re.compile(r"\{[^}]*\}")
_ITEM = re.compile(rb"([pd])([0-9]{1,9})")
_OF_A_KEY = re.compile(rb"\{[0-9]+\}:(\{[^}]*\}):[a-z]+")


@lru_cache(maxsize=1024)
def base_name(prefix: str, key: str) -> str:
    """What all names of *key* begin with; the first braces put a shard into one slot of a cluster.

    A ``}`` would end the name of the key too early, so braces are written in another way; no two
    keys become the same.
    """
    return f"{_shard(prefix, shard_of(key))}:{{{_without_braces(key)}}}"


def shard_of(key: str) -> int:
    return zlib.crc32(key.encode(errors="surrogatepass")) % SHARDS


@lru_cache(maxsize=4 * SHARDS)
def _shard(prefix: str, number: int) -> str:
    return f"{_without_braces(prefix)}:{SCHEMA}:{{{number}}}"


def _without_braces(text: str) -> str:
    return text.replace("{", "{{").replace("}", "{)")


def key_of(member: bytes) -> str | None:
    """The key whose name in the index of its shard is *member*; ``None`` for somebody else's."""
    try:
        name = member.decode()
    except UnicodeDecodeError:
        return None
    if not _MEMBER.fullmatch(name):
        return None
    return _BRACES.sub(lambda brace: "}" if brace[0] == "{)" else "{", name[1:-1])


def state_of(prefix: str, key: str) -> str:
    """The name from which scripts make all others of *key*."""
    return f"{base_name(prefix, key)}:state"


def notes_of(prefix: str, key: str) -> str:
    """The hash of the notes beside *key*."""
    return f"{base_name(prefix, key)}:notes"


def swap_of(prefix: str, name: str) -> str:
    """Where lies what is swapped under *name*."""
    return f"{base_name(prefix, name)}:swap"


def swapped(name: str, answer: bytes | None, now: int) -> tuple[str, bytes] | None:
    """What stands under *name*; ``None`` if that is nothing, or nothing of ours."""
    ends, _, value = (answer or b"").partition(b" ")
    return (name, value) if ends.isdigit() and int(ends) > now else None


def pattern(prefix: str, part: str) -> bytes:
    """What that *part* of any key is called, for Redis to look for."""
    ours = _SPECIAL.sub(r"\\\g<0>", f"{_without_braces(prefix)}:{SCHEMA}:")
    return f"{ours}{{[0-9]*}}:{{*}}:{part}".encode()


def key_named(prefix: str, name: bytes) -> str | None:
    """The key of which *name* is a part; ``None`` for a name of something else."""
    ours = f"{_without_braces(prefix)}:{SCHEMA}:".encode()
    match = _OF_A_KEY.fullmatch(name.removeprefix(ours))
    if not name.startswith(ours) or match is None:
        return None
    return key_of(match[1])


def names(base: str, task: str | None = None) -> list[str]:
    """The parts of a key in Redis; *task* is the one of which it may be known that it is done."""
    parts = ["state", "queue", "entries", "lost", "token"]
    return [f"{base}:{part}" for part in parts] + ([] if task is None else [f"{base}:done:{task}"])


def touched(prefix: str, key: str, task: str = "") -> list[str]:
    """What the script of an operation may touch, its state first."""
    shard = _shard(prefix, shard_of(key))
    shared = [f"{shard}:{part}" for part in ("due", "dead", "died", "tasks")]
    return [*names(base_name(prefix, key), task), *shared]


def indexes(prefix: str) -> list[str]:
    """The index of due keys of each shard."""
    return of_shards(prefix, "due")


def of_shards(prefix: str, part: str) -> list[str]:
    """What *part* of each shard is called."""
    return [f"{_shard(prefix, number)}:{part}" for number in range(SHARDS)]


def scores(rows: Sequence[Any]) -> list[tuple[bytes, float]]:
    """Names with their scores: in pairs, or by the older protocol in turns."""
    if rows and isinstance(rows[0], bytes):
        rows = list(zip(rows[::2], rows[1::2], strict=True))
    return [(name, float(score)) for name, score in rows]


class Item(NamedTuple):
    """In the index of tasks: a message of a task, and the name of its key in the shard."""

    is_dead: bool
    member: bytes
    task: bytes


def items_of(task_id: bytes, packed: bytes) -> Iterator[Item]:
    """The messages that the index of a shard has of *task_id*; it ends at what is not ours."""
    at = 0
    while match := _ITEM.match(packed, at):
        begins = match.end() + int(match[2])
        at = packed.find(b"}", begins) + 1
        if not at:
            return
        yield Item(match[1] == b"d", packed[begins:at], task_id + packed[match.end() : begins])


#: What the script of celery_dlock/core/upkeep.py does for an operation, and the fields it is told.
UPKEEP_FIELDS: Mapping[type, tuple[str, ...]] = {
    Cancel: ("cancel",),
    DeadLetter: ("dead_letter", "cause"),
    Discard: ("discard", "done_ttl"),
    HandBack: ("hand_back",),
    OpenSlot: ("open_slot", "name"),
    PutOnHold: ("hold", "was", "name", "by", "because", "lasts"),
    Replay: ("replay",),
}


def arguments(operation: Operation[Any]) -> Sequence[Any]:
    """What the script of *operation* is told after the time."""
    match operation:
        case Enter(claim=claim, message=message):
            return claim_arguments(claim, message)
        case Leave(claim=claim, outcome=outcome, message=message):
            return [*claim_arguments(claim, message), outcome.value.encode()]
        case Postpone(claim=claim, message=message, delay=delay, max_delay=max_delay):
            return [*claim_arguments(claim, message), b"%d" % delay, b"%d" % max_delay]
        case Reap():
            return ()
        case _:
            word, *names = UPKEEP_FIELDS[type(operation)]
            return (operation.claim.task, word, *(getattr(operation, name) for name in names))


def claim_arguments(claim: Claim, message: bytes | None) -> list[bytes]:
    """As bytes, which redis-py does not have to look at; the last is empty for a plain claim."""
    c = claim
    terms = (
        f"{MODE_CODES[c.mode]},{c.limit},{c.ttl},{c.wait.value},{c.patience},{c.done_ttl},"
        f"{c.gives_up},{c.max_waiting},{c.drop_oldest:d}{c.ordered:d}{c.entry},{c.keyset}"
        f";{c.name};{c.where}"
    )
    more = b"" if is_plain(c) else _json(others(c)).encode()
    return [c.task.encode(), c.nonce.encode(), terms.encode(), message or b"", more]


def reply(operation: Operation[Any], answer: Any) -> Reply[Any]:
    """What *answer* to *operation* says."""
    key = operation.claim.key
    match operation:
        case Enter():
            return entered(key, answer)
        case Leave():
            return left(key, answer)
        case Postpone():
            task, woken = answer
            return Reply(Postponed(task.decode()), wakes(key, woken))
        case _:
            verdict, woken = answer
            return Reply(None if isinstance(operation, Reap) else bool(verdict), wakes(key, woken))


def entered(key: str, answer: Any) -> Reply[EnterVerdict]:
    if isinstance(answer, bytes):  # the key was free
        return Reply(Run(0, int(answer.removeprefix(b"run "))))
    verdict, woken = answer
    return Reply(enter_verdict(verdict), wakes(key, woken))


def left(key: str, answer: Any) -> Reply[LeaveVerdict]:
    if isinstance(answer, bytes):  # nobody else had to do with the key
        return Reply(Left(bool(int(answer.removeprefix(b"left ")))))
    verdict, woken = answer
    return Reply(leave_verdict(verdict), wakes(key, woken))


def enter_verdict(answer: Sequence[Any]) -> EnterVerdict:
    match answer:
        case [b"run", int(slot), int(token)]:
            return Run(slot, token)
        case [b"park"]:
            return Park()
        case [b"park", row, *hold]:
            return Park(None if row is None else holder_from(row), _hold(hold))
        case [b"busy", row, int(left), int(parked), int(full), *hold]:
            holder = None if row is None else holder_from(row)
            return Busy(holder, left, parked, bool(full), _hold(hold))
        case [b"same", row, int(left)]:
            return Same(holder_from(row), left)
        case [b"end", bytes(code), by]:
            return End(_ENDINGS[code], "" if by is None else by.decode())
        case [b"drop", bytes(reason)]:
            return Drop(Reason(reason.decode()))
        case _:
            raise ValueError(f"no verdict: {answer!r}")


def leave_verdict(answer: Sequence[Any]) -> LeaveVerdict:
    match answer:
        case [b"left", int(carried)]:
            return Left(bool(carried))
        case [b"lost", int(carried)]:
            return NotHeld(bool(carried))
        case _:
            raise ValueError(f"no verdict: {answer!r}")


def renew_arguments(claims: Sequence[Claim]) -> list[str | int]:
    return [word for c in claims for word in (c.task, c.nonce, c.ttl)]


def renew_verdicts(answer: Sequence[Any], claims: Sequence[Claim]) -> list[RenewVerdict]:
    return [_renewed(claim, end) for claim, end in zip(claims, answer, strict=True)]


def _renewed(claim: Claim, end: int | bytes) -> RenewVerdict:
    if isinstance(end, bytes):
        return Replaced(end.decode())
    if end < 0:
        logger.warning("the lease of %r cannot be renewed: its state is unreadable", claim.key)
        return Unknown()
    return Renewed(end) if end else NotHeld()


def wakes(key: str, answer: Sequence[Any]) -> tuple[Wake, ...]:
    return tuple(
        Wake(key, task.decode(), message, None if code is None else _ENDINGS[code], woken)
        for task, message, code, woken in answer
    )


def swept(answer: Sequence[Any]) -> Swept:
    reaped, later = answer
    named = ((key_of(member), rows) for member, rows in reaped)
    woken = tuple(wake for key, rows in named if key is not None for wake in wakes_of(key, rows))
    return Swept(woken, None if later is None else later / SECOND)


def wakes_of(key: str, rows: Sequence[Any]) -> tuple[Wake, ...]:
    """The wakes of one key of a sweep; one that cannot be read must not cost the others theirs."""
    try:
        return wakes(key, rows)
    except NONSENSE:
        logger.exception("nobody is woken for %r", key)
        return ()


def dead_message(name: bytes, value: bytes) -> DeadMessage:
    """The dead letter that lies under *name* in its shard."""
    member, brace, task = name.partition(b"}")  # the name of a key has one only at its end
    key = key_of(member + brace)
    if key is None:
        key, task = shown(member + brace), task if brace else name
    head, _, message = value.partition(b";")

    def dead() -> Dead:
        mode, cause, at = head.split(b",")
        return Dead(task.decode(), _MODES[mode], cause_of(shown(cause)), int(at))

    return DeadMessage(key, dead_or_unreadable(shown(task), dead), message)


def shown(text: bytes) -> str:
    """*text* for people, which may be no UTF-8."""
    return text.decode(errors="backslashreplace")


def note_arguments(token: int, notes: Mapping[str, bytes | None]) -> list[bytes]:
    removed = [f":{name}".encode() for name, text in notes.items() if text is None]
    present = [
        word
        for name, text in notes.items()
        if text is not None
        for word in (f":{name}".encode(), text)
    ]
    return [str(token).encode(), *removed, b"", *present]


def notes(fields: Mapping[bytes, bytes]) -> dict[str, bytes]:
    return {name[1:].decode(): text for name, text in fields.items() if name.startswith(b":")}


def key_state(answer: Sequence[Any]) -> KeyState:
    named = _named(answer)
    state = KeyState(
        holders=tuple(map(holder_from, named["holders"])),
        grants=tuple(_record(Grant, row) for row in named["grants"]),
        parked=named["parked"],
        lost=tuple((task.decode(), count) for task, count in named["lost"]),
        paused=named["paused"],
        cooling=tuple(_record(Cooling, row) for row in named["cooling"]),
        hold=None if named["hold"] is None else _record(OperatorHold, named["hold"]),
    )
    return with_queue(state, tuple(_record(Waiting, row) for row in named["waiting"]))


def with_queue(state: KeyState, waiting: tuple[Waiting, ...]) -> KeyState:
    """*state* with those who are *waiting*."""
    first, last = (waiting[0].rank, waiting[-1].rank) if waiting else (0, 0)
    return replace(state, waiting=waiting, first=first, last=last)


def position(answer: Sequence[Any] | None) -> tuple[Waiting, int] | None:
    """The entry of a task, and how many come before it."""
    return None if answer is None else (_record(Waiting, answer[0]), int(answer[1]))


def holder_from(row: Sequence[Any]) -> Holder:
    return _record(Holder, row)


def _hold(rows: Sequence[Any]) -> OperatorHold | None:
    return _record(OperatorHold, rows[0]) if rows else None


def _named(pairs: Sequence[Any]) -> dict[str, Any]:
    """Values, each of which comes behind its name."""
    names = (name.decode() for name in pairs[::2])
    return dict(zip(names, pairs[1::2], strict=True))


def _record(kind: Callable[..., T], row: Sequence[Any]) -> T:
    """The value of a *row* that a script has made, see ``state.lua``."""
    known = known_fields(kind)
    named = dict(zip(known, row, strict=False)) | _named(row[len(known) :])
    readers = _readers(kind)
    return sound(kind(**{name: readers[name](value) for name, value in named.items()}))


@cache
def _readers(kind: Any) -> dict[str, Callable[[Any], Any]]:
    """How each field is read of what Redis answers."""
    return {name: _reader(set(get_args(of)) or {of}) for name, of in get_type_hints(kind).items()}


def _reader(kinds: set[Any]) -> Callable[[Any], Any]:
    if NoneType in kinds:
        read = _reader(kinds - {NoneType})
        return lambda value: None if value is None else read(value)
    (kind,) = kinds
    return _READERS[kind]


_READERS: Mapping[type, Callable[[Any], Any]] = {
    Mode: _MODES.__getitem__,
    Ending: _ENDINGS.__getitem__,
    str: bytes.decode,
    bool: bool,
    int: lambda value: value,
}
