"""Which messages a task id has, parked or dead: rows of an index that are made and gone with them.

A message lies under its key, and who revokes a task knows its id alone. The dead are also listed by
when they died, so that the oldest are found without reading the others.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import NamedTuple, Self

from celery_dlock.core.state import Dead, task_id_of
from celery_dlock.stores.consensus.rows import Kind, Name, Rows
from celery_dlock.stores.unreadable import is_text

#: So many task ids are looked for in one flight.
IDS = 100

_ITEM = re.compile(r"([pd])([0-9]{1,9})(.*)", re.DOTALL)


class Item(NamedTuple):
    """A message of *task* with *key*."""

    is_dead: bool
    key: str
    task: str

    @property
    def name(self) -> Name:
        """The row that says so."""
        task_id = task_id_of(self.task)
        rest = self.task[len(task_id) :]
        mark = "d" if self.is_dead else "p"
        return Name(Kind.TASK, task_id, f"{mark}{len(rest)}{rest}{self.key}")

    @classmethod
    def of(cls, name: Name) -> Self | None:
        """What the row *name* says; ``None`` if it is none of ours."""
        match = _ITEM.fullmatch(name.part)
        if match is None or not is_text(name.key) or not is_text(name.part):
            return None
        size = int(match[2])
        return cls(match[1] == "d", match[3][size:], name.key + match[3][:size])


def items_of(rows: Rows, task_ids: Collection[str]) -> list[Item]:
    """Where the messages of *task_ids* are, in any order."""
    wanted = [task_id for task_id in task_ids if is_text(task_id)]
    names = [
        name
        for start in range(0, len(wanted), IDS)
        for name in rows.names_of(Kind.TASK, wanted[start : start + IDS])
    ]
    return [item for item in map(Item.of, names) if item is not None]


def died(key: str, dead: Dead) -> Name:
    """Under which name a dead letter is listed; names sort by when, and then by key and task."""
    return Name(Kind.DIED, f"{key}\0{dead.task}\0{len(dead.task)}", f"{max(dead.at, 0):016d}")


def letter_of(name: Name) -> Name | None:
    """The dead letter that is listed under *name*; ``None`` if it is none of ours."""
    text, _, size = name.key.rpartition("\0")
    if not size.isdecimal() or len(text) <= int(size) or not is_text(text):
        return None
    begins = len(text) - int(size)
    return Name(Kind.DEAD, text[: begins - 1], text[begins:])
