"""The pages: what is held, waited for and dead, one key with its past, why a task did not run; and
what a person may do there.

A page reads a bounded part of the store, however much there is. What costs more, such as how ten
thousand keys stand, is read once for all visitors, and again when it is two seconds old. What has
become of a task is read once for all who ask at the same time, and of two tasks at a time.

An action has two steps: what is going to happen is said before it does. The address of a form names
what its page showed, down to the claim of the holder; what has changed meanwhile is left alone.
Afterwards one is led back to the page, which says what was done.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from hashlib import sha256
from inspect import signature
from typing import Generic, Self, TypeVar

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_dlock.beat import leader
from celery_dlock.core.canonical import escape
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.ops import actions, overview
from celery_dlock.ops.action import Action, NotSoAnyMore
from celery_dlock.ops.dead_letters import DeadLetterList
from celery_dlock.ops.explain import CAUSES, Answer
from celery_dlock.ops.holds import LONGEST_NAME
from celery_dlock.ops.overview import Held, Line
from celery_dlock.ops.urgent import Counts, Snapshot
from celery_dlock.stores.unreadable import UnreadableKey
from celery_dlock.web.auth import cookie, seal
from celery_dlock.web.history_view import COUNTED, Danger, EventLine, Strip
from celery_dlock.web.rendering import link, show, span

T = TypeVar("T")

#: Keys on a page, and dead messages.
ROWS = 50

#: Rows of a part of the page of a key, unless all of them are wanted.
FEW = 5
PARTS = ("holders", "waiting", "periods", "events")

#: So many keys are looked at for the summary and for those first that are waited for longest.
KEYS = 10_000

#: Seconds for which it is good how they stand; or so many times as long as it took to read.
FRESH = 2.0
REST = 4

#: Tasks that are asked after at a time, and for how many seconds another visitor waits for it.
READINGS = 2
WAIT_FOR_OTHERS = 2.0

#: Seconds from which on a wait is lit; the rules for Prometheus alert at the same.
LONG_WAIT = 900.0

#: The page that one is led back to after an action; by default that of the key.
BACK: Mapping[str, str] = {
    "replay": "dead",
    "discard": "dead",
    "end_claim": "unique",
    "step_down": "held",
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which keys are wanted: with *text* in their name, held by such a *task* or *worker*, or only
    those that somebody waits for.
    """

    text: str
    task: str
    worker: str
    waiting: str

    @classmethod
    def of(cls, query: QueryParams) -> Self:
        """As the address says it."""
        names = ("text", "task", "worker", "waiting")
        return cls(*(query.get(name, "").strip() for name in names))

    def takes(self, line: Line, counts: Counts) -> bool:
        """Whether *line*, which is counted in *counts*, is one of them."""
        return (
            escape(self.text) in line.key
            and (not self.waiting or counts.is_waited_for(line))
            and (not (self.task or self.worker) or any(map(self._fits, line.holders)))
        )

    def _fits(self, held: Held) -> bool:
        is_task = self.task in held.name or self.task in held.task_id
        return is_task and self.worker in held.where


def held(request: Request) -> Response:
    """The keys in use by pages, the most urgent first; beyond those that were all looked at they
    are in no order, and ``cursor`` says where they go on.
    """
    query, state = request.query_params, request.app.state
    wanted, cursor = Filter.of(query), query.get("cursor", "")
    snapshot: Snapshot = state.snapshot.get()
    letters: DeadLetterList = state.dead.get()

    def takes(line: Line) -> bool:
        return wanted.takes(line, snapshot.counts)

    rest: overview.Page | None = None
    try:
        number = max(1, int(query.get("page", "1")))
        if cursor:
            match = escape(wanted.text)
            rest = overview.page(state.celery, cursor, ROWS, match=match, which=takes)
    except ValueError as exc:
        raise HTTPException(400, "there is no such part of the list: go back to its start") from exc
    lines = [] if cursor else list(filter(takes, snapshot.lines))
    begin = ROWS * (number - 1)
    return show(
        request,
        "held.html",
        now=snapshot.now,
        snapshot=snapshot,
        letters=letters,
        store=state.store,
        long_wait=LONG_WAIT,
        wanted=wanted,
        terms=asdict(wanted),
        cursor=cursor,
        number=number,
        total=len(lines),
        begin=begin,
        lines=lines[begin : begin + ROWS] if rest is None else rest.lines,
        more=number + 1 if begin + ROWS < len(lines) else None,
        rest=snapshot.rest if rest is None else rest.cursor,
    )


def one_key(request: Request) -> Response:
    """One ``key``: who holds it, who waits for it in their order, and who has held it.

    A part of it shows its first rows, and each one if ``all`` names it.
    """
    key, before = wanted(request, "key"), request.query_params.get("before", "")
    try:
        zone = request.app.state.zone
        until = datetime.fromisoformat(before).astimezone(zone) if before else None
        past = request.app.state.past.of_key(key, until)
    except (ValueError, OverflowError) as exc:
        raise HTTPException(400, "that is not a time") from exc
    celery = request.app.state.celery
    details = overview.KeyDetails.of(celery, key)
    messages = overview.messages_of(celery, key, details.queue[:1])
    holding = {(holder.task_id, holder.token or None) for holder in details.line.holders}
    wanted_whole = request.query_params.get("all", "").split()
    return show(
        request,
        "key.html",
        now=details.now,
        key=key,
        leads=key.startswith(leader.KEYS),
        details=details,
        next="".join(message.sentence for message in messages.values()),
        past=past,
        strip=Strip.of(past.holds, holding),
        few=FEW,
        rows={part: None if part in wanted_whole else FEW for part in PARTS},
        before=until,
    )


def dead(request: Request) -> Response:
    """Messages that wait for a person, those first that are dead longest."""
    letters = request.app.state.dead.get()
    return show(
        request,
        "dead.html",
        now=letters.now,
        letters=letters.letters,
        more=letters.more,
        because=CAUSES,
        show_args=request.app.state.show_args,
    )


def unique(request: Request) -> Response:
    """The unique tasks that live, by their claims."""
    claims = request.app.state.unique.get()
    return show(request, "unique.html", now=claims.now, claims=claims)


def wanted(request: Request, name: str, may_be_empty: bool = False) -> str:
    """What the query says under *name*, without which a request makes no sense."""
    value = request.query_params.get(name, "")
    if not value and not may_be_empty:
        raise HTTPException(400, f"the address has no {name}")
    return value


def one_task(request: Request) -> Response:
    """What has become of the task ``id``; it is no page that asks for itself again."""
    task_id = request.query_params.get("id", "").strip()
    answer = request.app.state.answers.of(task_id) if task_id else None
    events = EventLine.once(reversed(answer.entries)) if answer else []
    return show(request, "task.html", task_id=task_id, answer=answer, lines=events[::-1])


def contention(request: Request) -> Response:
    """The tasks by name, those first that need somebody to act."""
    tally = request.app.state.tally.get()
    if isinstance(tally, str):
        return show(request, "contention.html", gap=tally, since=None, over="", dangers=())
    dangers = Danger.of_all(tally.tasks, ROWS)
    counted = (datetime.now(UTC) - tally.since).total_seconds()
    over = "hour" if counted >= COUNTED else span(counted)
    return show(request, "contention.html", gap="", since=tally.since, over=over, dangers=dangers)


class Shared(Generic[T]):
    """What *read* found, for as long as it is fresh. One reads it anew while others get the old.

    What takes long to read is read less often: no store is kept busy by those who look at it.
    That the store did not answer is good for as long, or all would wait for it one after another.
    """

    def __init__(self, read: Callable[[], T], fresh: float = FRESH) -> None:
        self._read = read
        self._fresh = fresh
        self._reading = threading.Lock()
        self._until = 0.0
        self._result: T | BackendUnavailable | None = None

    def get(self) -> T:
        """Raises :exc:`~celery_dlock.BackendUnavailable` as reading did."""
        old = self._result
        if time.monotonic() >= self._until:
            nothing = old is None or isinstance(old, BackendUnavailable)
            if self._reading.acquire(blocking=nothing):
                try:
                    self._read_anew()
                finally:
                    self._reading.release()
        reading = self._result
        if isinstance(reading, BackendUnavailable):
            raise BackendUnavailable(str(reading))
        assert reading is not None
        return reading

    def _read_anew(self) -> None:
        began = time.monotonic()
        if began < self._until:
            return  # another one has, while this one waited
        try:
            self._result = self._read()
        except BackendUnavailable as exc:
            self._result = exc
        ended = time.monotonic()
        self._until = ended + max(self._fresh, REST * (ended - began))


class Busy(Exception):
    """As many tasks are asked after as the store is asked for at a time."""


class Answers:
    """What *read* says of tasks. Those who ask after one at the same time share a reading.

    So many are read at a time: nobody keeps the store busy, also with requests that he gives up.
    """

    def __init__(self, read: Callable[[str], Answer]) -> None:
        self._read = read
        self._reading: dict[str, Future[Answer]] = {}
        self._changed = threading.Condition()

    def of(self, task_id: str) -> Answer:
        """Raises :exc:`Busy` if others ask after other tasks all the while."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._may_ask(task_id), WAIT_FOR_OTHERS):
                raise Busy
            shared = self._reading.get(task_id)
            reading = self._reading.setdefault(task_id, Future())
        if shared is None:
            self._answer(task_id, reading)
        return reading.result()

    def _may_ask(self, task_id: str) -> bool:
        return task_id in self._reading or len(self._reading) < READINGS

    def _answer(self, task_id: str, reading: Future[Answer]) -> None:
        try:
            reading.set_result(self._read(task_id))
        except Exception as exc:
            reading.set_exception(exc)
        finally:
            with self._changed:
                del self._reading[task_id]
                self._changed.notify_all()


logger = logging.getLogger("celery_dlock")


def ask(request: Request, name: str) -> Response:
    """What the action *name* would be done to, and what becomes of it then."""
    try:
        action = _found(request, name)
    except NotSoAnyMore as exc:
        return _back(request, name, str(exc))
    return show(
        request,
        "confirm.html",
        action=action,
        to=link(request, name, **action.names),
        back=_led_back(request, name),
        secret=request.state.dlock_secret,
    )


def act(request: Request, name: str) -> Response:
    """Carry out the action *name* on what the form named.

    Who asked is a line in the log, whatever came of it. It is a warning, so that it is seen where
    nobody has set up logging.
    """
    form: Mapping[str, str] = request.state.dlock_form
    came_of_it = "nothing was done"
    try:
        action = _found(request, name, form)
        came_of_it = "it is not known whether it was done"
        done = action.carry_out(_who(request)[:LONGEST_NAME])
        came_of_it = "done" if done else "there was nothing to do"
        sentence = action.done if done else action.nothing
    except NotSoAnyMore as exc:
        came_of_it, sentence = "there was nothing to do", str(exc)
    finally:
        given = {**form, **request.query_params}
        _, *named = signature(actions.ACTIONS[name]).parameters
        what = " ".join(
            f"{each}={given[each]!r}" for each in named if each in given and each != "by"
        )
        logger.warning("%s asked the page to %s %s: %s", _who(request), name, what, came_of_it)
    return _back(request, name, sentence)


def _found(request: Request, name: str, form: Mapping[str, str] | None = None) -> Action:
    """The action by its *name* and by what the address names, and what the *form* has filled in.

    Raises :exc:`NotSoAnyMore` if what it names has gone.
    """
    find = partial(actions.ACTIONS[name], request.app.state.celery)
    names = {
        each.name: wanted(request, each.name, each.default is not each.empty)
        for each in signature(find).parameters.values()
        if each.kind is not each.KEYWORD_ONLY
    }
    try:
        action = find(**names)
        if form is not None and action.fields:
            filled_in = {field.name: field.read(form) for field in action.fields}
            action = find(**names, **filled_in, by=_who(request)[:LONGEST_NAME])
    except ConfigurationError as exc:
        raise HTTPException(400, str(exc)) from exc
    except UnreadableKey as exc:
        raise HTTPException(409, str(exc)) from exc
    else:
        return action


def _back(request: Request, name: str, sentence: str) -> Response:
    sealed = {"said": sentence, "seal": seal(request, sentence)}
    return RedirectResponse(_led_back(request, name, **sealed), 303)


def _led_back(request: Request, name: str, **query: str) -> str:
    page = BACK.get(name, "key")
    return link(request, page, key=request.query_params["key"] if page == "key" else "", **query)


def _who(request: Request) -> str:
    """As the surrounding site says, or by the session, of which no line tells the secret."""
    host = request.client.host if request.client else "an unknown host"
    user = request.scope.get("user")
    name = str(getattr(user, "display_name", user) or "")
    session = sha256(request.cookies.get(cookie(request), "").encode()).hexdigest()[:8]
    return f"{name!r} at {host!r}" if name else f"session {session} at {host!r}"
