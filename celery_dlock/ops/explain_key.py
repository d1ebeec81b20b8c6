"""What has become of a key: how it stands, who waits for it, and what has happened to it."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from celery_dlock.core.debounce import named
from celery_dlock.core.sentences import count, listed
from celery_dlock.core.state import Mode, task_id_of
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.monitoring.history_reader import HistoryEntry, HistoryReader
from celery_dlock.ops.event_text import Clock
from celery_dlock.ops.explain import called
from celery_dlock.ops.holds import sentence
from celery_dlock.ops.overview import (
    Held,
    KeyDetails,
    Line,
    MessageFacts,
    QueueEntry,
    is_debounced,
    messages_of,
)
from celery_dlock.ops.unique import living
from celery_dlock.runtime import runtime


@dataclass(frozen=True, slots=True)
class KeyAnswer:
    """How a key stands, who waits for it in order, and what has happened to it, in order.

    ``line`` is ``None`` if the store did not answer, and ``unavailable`` says why. ``queue`` are
    the first who wait, and how many more are ``behind`` them; ``messages`` is what their messages
    say, by task. *now* is the store's, if it did.
    """

    key: str
    line: Line | None
    queue: tuple[QueueEntry, ...]
    sentences: tuple[str, ...]
    entries: tuple[HistoryEntry, ...]
    now: datetime
    behind: int = 0
    messages: Mapping[str, MessageFacts] = field(default_factory=dict)
    unavailable: str = ""


def explain_key(app: Any, key: str, limit: int = 20, events: int = 50) -> KeyAnswer:
    """How *key* stands, the first *limit* who wait for it, and its last *events*.

    Raises :exc:`~celery_dlock.ConfigurationError` for what cannot be a key.
    """
    key = named(key)
    clock = Clock.of(app)
    sentences: list[str] = []
    line: Line | None = None
    waiting: tuple[QueueEntry, ...] = ()
    messages: Mapping[str, MessageFacts] = {}
    behind, unavailable = 0, ""
    try:
        near = KeyDetails.of(app, key, limit)
        line, clock = near.line, Clock.of(app, near.now)
        if line.woken or line.reserved or line.waiting:
            waiting, behind = near.queue, near.behind
        sentences += _of_line(line, waiting, clock)
        messages = messages_of(app, key, waiting)
        sentences += [facts.sentence for facts in messages.values() if facts.sentence]
        sentences += [
            f"{task_id_of(task)} belongs to another broker, {facts.broker}"
            for task, facts in messages.items()
            if facts.broker
        ]
        unique = living(runtime(app).existing_store(), key=key)
        sentences += [f"{claim.task_id} {claim.sentence()}" for claim in unique[:limit]]
    except BackendUnavailable as exc:
        unavailable = str(exc)
        sentences.append(f"the lock store did not answer: {unavailable}")
    entries, gap = _events(app, key, events)
    told = (*sentences, *gap)
    return KeyAnswer(key, line, waiting, told, entries, clock.now, behind, messages, unavailable)


def _of_line(line: Line, waiting: tuple[QueueEntry, ...], clock: Clock) -> list[str]:
    if line.unreadable:
        return [f"the lock store answers but cannot read this key: {line.unreadable}"]
    sentences = [_of_holder(held, clock) for held in line.holders] or ["nobody holds it"]
    if line.holders and line.holders[0].mode is Mode.LIMITED:
        sentences.append(f"{len(line.holders)} of {line.holders[0].limit} hold it")
    if (hold := line.on_hold(clock.now)) is not None:
        sentences.append(f"it is {sentence(hold, clock)}; nobody new gets it before")
    if (at := line.opens(clock.now)) is not None:
        what = "one of its slots" if line.holders else "it"
        then = f"{what} is cooling down until {clock.tell(at)} and cannot be taken before"
        if is_debounced(line.key):
            then = f"a call is debounced until {clock.tell(at)}, unless a newer one takes its place"
        sentences.append(then)
    if line.woken:
        sentences.append(f"the turn of {listed(line.woken)} has come, and no worker has taken it")
    if line.reserved:
        sentences.append(f"a turn is reserved for {listed(line.reserved)}, to come back by itself")
    if line.waiting:
        since = f", the first since {clock.tell(line.oldest)}" if line.oldest else ""
        sentences.append(f"{count(line.waiting, 'task waits', 'tasks wait')}{since}")
    places = [entry.task_id for entry in waiting if not (entry.parked or entry.woken)]
    if places:
        sentences.append(f"a place is kept for {listed(places)}, to come back by itself")
    return sentences


def _of_holder(held: Held, clock: Clock) -> str:
    token = f" with token {held.token}" if held.token else ""
    since, expires = clock.tell(held.since), clock.tell(held.expires)
    who = called(held.task_id, held.name, held.where)
    if held.expires > clock.now:
        return f"{who} has held it since {since}{token}; its lease lasts until {expires}"
    return f"{who} held it from {since} on{token}, until its lease expired at {expires}"


def _events(app: Any, key: str, limit: int) -> tuple[tuple[HistoryEntry, ...], tuple[str, ...]]:
    try:
        with closing(HistoryReader.from_app(app)) as reader:
            return tuple(reversed(reader.of_key(key, limit))), ()
    except (BackendUnavailable, ConfigurationError) as exc:
        return (), (str(exc),)
