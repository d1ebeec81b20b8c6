"""The pages: what is held, waited for and dead, one key with its past, why a task did not run; and
what a person may do there.

A page reads a bounded part of the store, however much there is. What costs more, such as how ten
thousand keys stand, is read once for all visitors, and again when it is two seconds old. What has
become of a task is read once for all who ask at the same time, and of two tasks at a time.

An action has two steps: what is going to happen is said before it does. The address of a form names
what its page showed, down to the claim of the holder; what has changed meanwhile is left alone.
Afterwards one is led back to the page, which says what was done. Who did what is a line in the log,
whatever came of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Generic, Self, TypeVar

from starlette.datastructures import QueryParams
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from celery_dlock.beat import leader
from celery_dlock.core.canonical import escape
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.ops import actions, holds, overview
from celery_dlock.ops.explain import CAUSES, Answer
from celery_dlock.ops.overview import Held, KeyDetails, Line
from celery_dlock.ops.urgent import Counts, Snapshot
from celery_dlock.web.auth import cookie
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

#: What was done, by the word for it in the address of the page after it.
DONE: Mapping[str, str] = {
    "on-hold": "The key is on hold.",
    "held-otherwise": "Nothing was done: the hold of this key is another one by now.",
    "hold-ended": "The key is no longer on hold.",
    "released": "The key was released.",
    "not-held": "Nothing was done: that holder no longer has the key.",
    "cancelled": "The task will end as revoked.",
    "not-waiting": "Nothing was done: that message no longer waits.",
    "replayed": "The message waits for its key again.",
    "discarded": "The dead letter is discarded: its task does not run.",
    "expired": "Nothing was done: that message has expired, and a worker would discard it.",
    "not-dead": "It is no longer a dead letter: it has run, or was replayed or discarded.",
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
    letters: actions.DeadLetterList = state.dead.get()

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
        details=details,
        next="".join(message.sentence for message in messages.values()),
        past=past,
        strip=Strip.of(past.holds, holding),
        few=FEW,
        rows={part: None if part in wanted_whole else FEW for part in PARTS},
        before=until,
        done=_done(request),
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
        done=_done(request),
    )


def unique(request: Request) -> Response:
    """The unique tasks that live, by their claims."""
    claims = request.app.state.unique.get()
    return show(request, "unique.html", now=claims.now, claims=claims)


def wanted(request: Request, name: str) -> str:
    """What the query says under *name*; without it the request makes no sense."""
    value = request.query_params.get(name, "")
    if not value:
        raise HTTPException(400, f"the address has no {name}")
    return value


def _done(request: Request) -> str:
    return DONE.get(request.query_params.get("done", ""), "")


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


def ask_release(request: Request) -> Response:
    """Who is shown is who is going to lose the key."""
    key, owner = wanted(request, "key"), wanted(request, "owner")
    holder = _holder(request, key, owner)
    if holder is None:
        return _back(request, "key", "not-held", key=key)
    return show(
        request,
        "release.html",
        key=key,
        holder=holder,
        consequences=actions.CONSEQUENCES,
        secret=_secret(request),
    )


def release(request: Request) -> Response:
    """Release the key from the holder that was shown, and from no other."""
    key, owner = wanted(request, "key"), wanted(request, "owner")
    holder = _holder(request, key, owner)

    def act() -> bool:
        return holder is not None and actions.release(request.app.state.celery, key, holder)

    done = _audited(request, act, "release %r from %r", key, owner)
    return _back(request, "key", "released" if done else "not-held", key=key)


#: For how long a key can be put on hold here, in seconds.
HOLDS = (900, 3600, 4 * 3600, 24 * 3600)


def hold(request: Request) -> Response:
    """Put the key on hold, instead of the one that was shown."""
    key, was, fields = wanted(request, "key"), _was(request), request.state.dlock_form
    because, by = fields.get("because", "").strip(), _who(request)[: holds.LONGEST_NAME]
    lasts = next((seconds for seconds in HOLDS if str(seconds) == fields.get("lasts")), 0)
    _read(request, key)

    def act() -> bool:
        return holds.put_on_hold(request.app.state.celery, key, lasts, because, by, was)

    try:
        done = _audited(request, act, "put %r on hold for %d s: %r", key, lasts, because)
    except ConfigurationError as exc:
        raise HTTPException(400, str(exc)) from exc
    return _back(request, "key", "on-hold" if done else "held-otherwise", key=key)


def end_hold(request: Request) -> Response:
    """End the hold that was shown, and no other."""
    key, was = wanted(request, "key"), wanted(request, "was")
    _read(request, key)

    def act() -> bool:
        return holds.end_hold(request.app.state.celery, key, was)

    done = _audited(request, act, "end the hold %r of %r", was, key)
    return _back(request, "key", "hold-ended" if done else "held-otherwise", key=key)


def ask_about_hold(request: Request, page: str) -> Response:
    """The hold of the key, if the address still names the one that it is on."""
    key = wanted(request, "key")
    current = _read(request, key).hold
    if _was(request) != (current.name if current else ""):
        return _back(request, "key", "held-otherwise", key=key)
    form: dict[str, Any] = {
        "lasts": HOLDS,
        "longest": holds.LONGEST_REASON,
        "secret": _secret(request),
    }
    return show(request, page, key=key, current=current, **form)


def _was(request: Request) -> str:
    return request.query_params.get("was", "")


def ask(request: Request, page: str, **more: Any) -> Response:
    """The message that the address names, waiting or dead."""
    return show(request, page, message=_message(request), secret=_secret(request), **more)


def cancel(request: Request) -> Response:
    """Have it end as revoked."""
    message = _message(request)
    done = _acted(request, actions.cancel, message, "cancel %r, which waits for %r")
    return _back(request, "key", "cancelled" if done else "not-waiting", key=message.key)


def replay(request: Request) -> Response:
    """Have it wait for its key again."""
    message = _message(request)
    expired = actions.expired(request.app.state.celery, [message])

    def act(app: Any, dead: actions.Message) -> bool:
        return not expired and actions.replay(app, dead)

    done = _acted(request, act, message, "replay %r for %r")
    return _back(request, "dead", "replayed" if done else "expired" if expired else "not-dead")


def discard(request: Request) -> Response:
    """Forget it."""
    message = _message(request)
    letters = request.app.state.dead.get().letters
    names = {(letter.key, letter.task): letter.name for letter in letters}
    name = names.get((message.key, message.task))
    message, by = replace(message, name=name or ""), _who(request)[: holds.LONGEST_NAME]

    def act(app: Any, dead: actions.Message) -> bool:
        return all(actions.discard(app, [dead], by))

    done = _acted(request, act, message, "discard %r for %r")
    return _back(request, "dead", "discarded" if done else "not-dead")


def _acted(
    request: Request,
    act: Callable[[Any, actions.Message], bool],
    message: actions.Message,
    what: str,
) -> bool:
    app = request.app.state.celery
    _read(request, message.key)
    return _audited(request, lambda: act(app, message), what, message.task_id, message.key)


def _message(request: Request) -> actions.Message:
    return actions.Message(wanted(request, "key"), wanted(request, "task"))


def _holder(request: Request, key: str, owner: str) -> Held | None:
    if key.startswith(leader.KEYS):
        raise HTTPException(403, "this is the key of a beat: use `dlock beat --step-down`")
    line = _read(request, key)
    return next((held for held in line.holders if held.owner == owner), None)


def _read(request: Request, key: str) -> Line:
    """What the store says of *key*; of one that it cannot read it is said that nothing was done."""
    line = KeyDetails.of(request.app.state.celery, key).line
    if line.unreadable:
        raise HTTPException(409, f"the lock store cannot read this key: {line.unreadable}")
    return line


def _back(request: Request, page: str, done: str, **query: object) -> Response:
    assert done in DONE
    return RedirectResponse(link(request, page, **query, done=done), 303)


def _secret(request: Request) -> str:
    return str(request.state.dlock_secret)


def _audited(request: Request, act: Callable[[], bool], what: str, *about: object) -> bool:
    """What *act* returns, which says whether it did *what*, with *about* in its places.

    It is a warning, so that it is seen where nobody has set up logging.
    """
    came_of_it = "it is not known whether it was done"
    try:
        did = act()
        came_of_it = "done" if did else "there was nothing to do"
        return did
    finally:
        logger.warning(f"%s asked the page to {what}: %s", _who(request), *about, came_of_it)


def _who(request: Request) -> str:
    """As the surrounding site says, or by the session, of which no line tells the secret."""
    host = request.client.host if request.client else "an unknown host"
    user = request.scope.get("user")
    name = str(getattr(user, "display_name", user) or "")
    session = sha256(request.cookies.get(cookie(request), "").encode()).hexdigest()[:8]
    return f"{name!r} at {host!r}" if name else f"session {session} at {host!r}"
