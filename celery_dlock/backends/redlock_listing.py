"""The keys of a Redlock: those that its queue knows, and then those that only the nodes know.

A claim that came while the queue's node was away is known to the other nodes alone, and so are all
after that node has forgotten. So each node is walked through, too, for what the queue has missed.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from celery_dlock.backends import redlock_wire as wire
from celery_dlock.backends.base import KeyPage
from celery_dlock.backends.redis_listing import walk
from celery_dlock.backends.redlock_council import Council, nothing_less
from celery_dlock.backends.redlock_votes import as_the_nodes_know, unknown_to_the_queue
from celery_dlock.core.state import Holder, KeyState

_AT_NODE = re.compile(r"n([0-9]{1,2}):([0-9]{1,20})")


def of_the_queue(page: KeyPage) -> KeyPage:
    """*page* of its keys; after the last comes the first node."""
    return replace(page, cursor="n0:0" if page.cursor is None else f"q{page.cursor}")


def at_node(cursor: str, nodes: int) -> tuple[int, int] | None:
    """At which node to go on, and where; ``None`` while it is the queue that tells.

    Raises :exc:`ValueError` for what no page has given.
    """
    if not cursor or cursor.startswith("q"):
        return None
    found = _AT_NODE.fullmatch(cursor)
    if found is None or int(found[1]) >= nodes or int(found[2]) >= 2**64:
        raise ValueError("this cursor is of no list of keys")
    return int(found[1]), int(found[2])


def of_the_nodes(
    council: Council, calls: wire.Wire, prefix: str, where: tuple[int, int], limit: int
) -> KeyPage:
    """Keys that are held at one node. One that is away is left out: a majority is enough."""
    number, at = where

    def step(at: int, count: int) -> Sequence[Any]:
        reply = council.tell({number: [calls.held(at, count)]}).get(number, [None])[0]
        return reply if isinstance(reply, list) else (0, ())

    keys, at = walk(step, prefix, at, limit)
    after = (number, at) if at else (number + 1, 0)
    cursor = None if after[0] == council.size else f"n{after[0]}:{after[1]}"
    return KeyPage(tuple(keys), cursor)


def with_all_holders(
    council: Council, calls: wire.Wire, keys: Sequence[str], states: Sequence[KeyState]
) -> list[KeyState]:
    """*states* of *keys*, which are what the queue says, with the holders that the nodes know."""
    answers = council.ask(calls.holders(keys), nothing_less)
    replies = [wire.holders(answer, len(keys)) for answer in answers.nodes.values()]
    known = [reply for reply in replies if reply is not None]
    return [
        _together(state, [reply[n] for reply in known], council.size)
        for n, state in enumerate(states)
    ]


def _together(state: KeyState, known: Sequence[tuple[Holder, ...]], nodes: int) -> KeyState:
    """*state* as the queue has it, with what each of some nodes knows of its holders."""
    every = [holder for holders in known for holder in holders]
    mine = tuple(as_the_nodes_know(holder, every) for holder in state.holders)
    return replace(state, holders=mine + unknown_to_the_queue(mine, known, nodes))
