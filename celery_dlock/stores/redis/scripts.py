"""The rules of :mod:`celery_dlock.core.machine` in Lua, as scripts that Redis runs whole.

They are kept as ``.lua`` files, a few of them to a script; their constants come from the Python
side, so that there is one place for each. A script is called by its digest. A server that
does not know it (after a restart, a failover) is sent the text with the same arguments.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from types import NoneType
from typing import Any, Self, get_args, get_type_hints

from celery_dlock.core.debounce import UNTIL_DUE
from celery_dlock.core.edits import SHUT_FOR
from celery_dlock.core.machine import MAX_LOST_RUNS
from celery_dlock.core.operations import (
    Enter,
    Leave,
    Postpone,
    Reap,
)
from celery_dlock.core.plain import known_fields
from celery_dlock.core.state import (
    GAVE_WAY,
    STRANGER_RESERVED,
    WAKES_RESERVED,
    WINDOW,
    Cause,
    Cooling,
    Ending,
    Grant,
    Holder,
    Mode,
    OperatorHold,
    Waiting,
)
from celery_dlock.core.turns import UNATTENDED, WAKE_AGAIN_FIRST, WAKE_AGAIN_LAST
from celery_dlock.core.upkeep import WAKE_ELSEWHERE, WAKES_BEFORE_DEAD
from celery_dlock.stores.change import REMEMBER_LOST
from celery_dlock.stores.redis.wire import ENDING_CODES, MODE_CODES, UPKEEP_FIELDS

#: What redis-py sends: the name of a command, and what it is about.
Command = tuple[Any, ...]

_HOLDER = ("write_holder", "one_holder")
_STATE = ("rows", "state", "read_state", "line")
_OF_KEY = ("clock", "names", *_HOLDER, *_STATE, "key")
RULES = (*_OF_KEY, "edits", "turns")

_CONSTANTS = f"""\
local WINDOW = {WINDOW}
local WAKE_AGAIN_FIRST = {WAKE_AGAIN_FIRST}
local WAKE_AGAIN_LAST = {WAKE_AGAIN_LAST}
local UNATTENDED = {UNATTENDED}
local WAKES_RESERVED, STRANGER_RESERVED = {WAKES_RESERVED}, {STRANGER_RESERVED}
local REMEMBER_LOST = {REMEMBER_LOST}
local EXCLUSIVE, SHARED = '{MODE_CODES[Mode.EXCLUSIVE]}', '{MODE_CODES[Mode.SHARED]}'
local LIMITED = '{MODE_CODES[Mode.LIMITED]}'
local UNTIL_DUE = '{UNTIL_DUE}'
local GAVE_WAY = {GAVE_WAY}
local TIMED_OUT = '{ENDING_CODES[Ending.TIMED_OUT]}'
local DROPPED = '{ENDING_CODES[Ending.DROPPED]}'
local REVOKED = '{ENDING_CODES[Ending.REVOKED]}'
local RUNS_LOST, FAILED = '{Cause.RUNS_LOST}', '{Cause.FAILED}'
local SHUT_FOR = {SHUT_FOR}
local MAX_LOST_RUNS = {MAX_LOST_RUNS}
local WAKES_BEFORE_DEAD = {WAKES_BEFORE_DEAD}
local WAKE_ELSEWHERE = {WAKE_ELSEWHERE}
"""


def _writer(name: str, record: Any) -> str:
    """A function for scripts that makes a row of a *record*.

    A row has the fields that shortcuts know, in their order; behind these, of each other one that
    is not as by default, its name and its value. In a record of Lua such a field is nil by default.
    """
    kinds, known = get_type_hints(record), known_fields(record)
    values = ", ".join(_written(field, kinds[field]) for field in known)
    return f"""\
local function {name}_row(record, row)
  row = row or {{{values}}}
{"".join(_add_other(field) for field in kinds if field not in known)}  return row
end
"""


def _reader(name: str, record: Any) -> str:
    """One that reads it again; the record is *plain* if there was no other field."""
    kinds, known = get_type_hints(record), known_fields(record)
    others = {field: kind for field, kind in kinds.items() if field not in known}
    checks = " or ".join(_is_wrong(f"row[{n}]", kinds[f]) for n, f in enumerate(known, 1))
    fields = ", ".join(f"['{field}'] = row[{n}]" for n, field in enumerate(known, 1))
    return f"""\
local function {name}_of_row(row, record)
  local at = record and 1 or {len(known) + 1}
  if not record and ({checks}) then error('this is not the row of a {name}') end
  record = record or {{{fields}}}
  for i = at, #row, 2 do
    local field, value = row[i], row[i + 1]
{"".join(_put_other(field, kind) for field, kind in others.items())}  end
  record.plain = #row < at
  return record
end
"""


def _written(field: str, kind: Any) -> str:
    return f"record['{field}']" + (
        " or false" if kind is bool or NoneType in get_args(kind) else ""
    )


def _add_other(field: str) -> str:
    value = f"record['{field}']"
    return f"  if {value} then row[#row + 1], row[#row + 2] = '{field}', {value} end\n"


def _put_other(field: str, kind: Any) -> str:
    return f"""\
    if field == '{field}' then
      if {_is_wrong("value", kind)} then error('this is not its {field}') end
      record.{field} = value
    end
"""


def _is_wrong(value: str, kind: Any) -> str:
    """In Lua, whether *value* is not of that type."""
    kinds = get_args(kind) or (kind,)
    word = "boolean" if bool in kinds else "number" if int in kinds else "string"
    wrong = f"type({value}) ~= '{word}'"
    return f"{value} and {wrong}" if NoneType in kinds else wrong


_RECORDS = {
    "holder": Holder,
    "grant": Grant,
    "waiting": Waiting,
    "cooling": Cooling,
    "hold": OperatorHold,
}

_OF_HOLDER = known_fields(Holder)

#: What is made here, and no file.
_MADE = {
    "write_holder": f"""\
local type = type
local function is_plain_holder(row, task, nonce)
  return type(row) == 'table' and #row == {len(_OF_HOLDER)}
    and row[{_OF_HOLDER.index("task") + 1}] == task
    and row[{_OF_HOLDER.index("nonce") + 1}] == nonce
end
{_writer("holder", Holder)}""",
    "rows": "".join(
        f"{'' if record is Holder else _writer(name, record)}{_reader(name, record)}"
        for name, record in _RECORDS.items()
    ),
}

#: The text of each script, by its digest.
_TEXTS: dict[bytes, str] = {}


def text_of(*names: str | Sequence[str]) -> str:
    """The text of one script, made of the named files in this order.

    What is named together is a block: its local names end with it, of which Lua allows 200.
    """
    return "\n".join((_CONSTANTS, *map(_text, names)))


def _text(name: str | Sequence[str]) -> str:
    if not isinstance(name, str):
        return "\n".join(("do", *map(_text, name), "end"))
    file = files("celery_dlock.stores.redis") / "lua" / f"{name}.lua"
    return _MADE.get(name) or file.read_text(encoding="utf-8")


@dataclass(frozen=True, slots=True)
class Script:
    """One script, and the digest by which Redis knows it."""

    text: str
    digest: bytes

    @classmethod
    def of(cls, *names: str | Sequence[str]) -> Self:
        return cls.with_text(text_of(*names))

    @classmethod
    def with_text(cls, text: str) -> Self:
        digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest().encode()
        _TEXTS[digest] = text
        return cls(text, digest)

    def on(self, keys: Sequence[str], arguments: Sequence[Any]) -> Command:
        """The command that runs it on *keys*, which all lie in one slot of a cluster."""
        return ("EVALSHA", self.digest, len(keys), *map(str.encode, keys), *arguments)


# The common cases come first, and without the rules.
_FIRST = ("clock", "names", "claim", *_HOLDER)
_THE_REST = ("key", "edits", "turns", "machine")

ENTER = Script.of(*_FIRST, "free", *_STATE, ("simple", "behind"), *_THE_REST, "enter")
LEAVE = Script.of(*_FIRST, "alone", *_STATE, ("simple", "hand_on"), *_THE_REST, "leave")
POSTPONE = Script.of("claim", *RULES, "postpone")
RENEW = Script.of(*RULES, "renew")
REAP = Script.of(*RULES, "reap")
SWEEP = Script.of(*RULES, "overdue", "sweep")
OVERDUE = Script.of(*RULES, "overdue", "look")
REAP_OVERDUE = Script.of(*RULES, "overdue", "reap_overdue")
UPKEEP = Script.of(*RULES, "upkeep")
MESSAGE = Script.of(*_OF_KEY, "message")
PEEK = Script.of(*_OF_KEY, "peek")
POSITION = Script.of(*_OF_KEY, "position")
HEADS = Script.of(*_OF_KEY, "heads")
NOTE = Script.of("note")
SWAP = Script.of("clock", "swap")
TIME = Script.with_text("return redis.call('TIME')")


#: The script that has the rule of an operation.
BY_OPERATION: Mapping[type, Script] = {
    Enter: ENTER,
    Leave: LEAVE,
    Postpone: POSTPONE,
    Reap: REAP,
    **dict.fromkeys(UPKEEP_FIELDS, UPKEEP),
}


def in_full(command: Command) -> Command:
    """*command* with the text of its script, which Redis does not know yet."""
    return ("EVAL", _TEXTS[command[1]], *command[2:])


def key_of_command(command: Command) -> str | bytes:
    """The first key that *command* is about."""
    key: str | bytes = command[3] if command[0] == "EVALSHA" else command[1]
    return key


#: A command that was refused by name, and a line of a script at which one was, as a server says it:
#: from version 7 on, and before.
_BY_NAME = re.compile(r"no permissions to run the '([\w|]+)' command")
_AT_LINE = re.compile(r"(?:script: |call to (?:f_)?)([0-9a-f]{40}).*@user_script: ?(\d+)")
_IN_A_SCRIPT = re.compile(
    r"can't run this command|not allowed from script|unknown (?:redis )?command|undeclared key",
    re.IGNORECASE,
)
_CALLED = re.compile(r"redis\.call\('(\w+)'")


def refused_command(error: str) -> str:
    """The command that a server refuses us, as its *error* says; empty if that is another one."""
    if named := _BY_NAME.search(error):
        return named[1].upper()
    place = _IN_A_SCRIPT.search(error) and _AT_LINE.search(error)
    if not place or (text := _TEXTS.get(place[1].encode())) is None:
        return ""
    lines = text.splitlines()[int(place[2]) - 1 : int(place[2])]
    return " or ".join(_CALLED.findall("".join(lines)))
