"""What a message carries of its own past, in the header ``dlock``; and who it is.

Celery's ``retry()`` copies headers and keeps the task id, so the header names the identity it
speaks of; under another identity the past does not count.
"""

from __future__ import annotations

import hashlib
import time
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from celery.app.task import Context

from celery_dlock.core import turns
from celery_dlock.core.lease import SECOND
from celery_dlock.stores.unreadable import is_text

#: Written by the library into a message that it publishes again.
HISTORY = "dlock"
#: Signs of a task id. A store has the ids of many tasks in one row, of a megabyte at the most.
LONGEST_TASK_ID = 1_000
#: Written into what a canvas publishes: the id, and that of the task which comes before it; and
#: which keys that task keeps for it, if it is the ``next`` one of its chain.
STEP = "dlock_step"
#: Written into what is published after a body, as a link or a chord's body: the id of that task.
FOLLOWS = "dlock_follows"
#: Written by the worker's main process into the request, new for each delivery.
DELIVERY = "dlock_delivery"
#: Where the record lies on Celery's request object, which belongs to one execution only.
EXECUTION = "dlock_execution"
#: Where a request says that ``RETRY`` is stored.
RETRY_STORED = "dlock_retry_stored"

#: What is larger counts nothing, and is not a second since 1970 before the year 3000.
_NO_NUMBER = 32_503_680_000


def identity(request: Context) -> str:
    """``task_id:retries:nesting``: ``retry()`` and ``replace()`` keep the task id.

    A chain that is used again publishes its last step under the same id. There the nesting also
    tells after which task it comes: it is another one after another task.
    """
    return _identity(request.id, request)


def identity_of_next(task: str) -> str:
    """The identity of what ``retry()`` publishes in *task*."""
    task_id, retries, nesting = task.rsplit(":", 2)
    return f"{task_id}:{int(retries) + 1}:{nesting}"


def identity_in(headers: Mapping[str, Any]) -> str:
    """The same from the headers of a message."""
    return _identity(headers["id"], headers)


def identity_as_sent(task_id: str, options: Mapping[str, Any]) -> str:
    """The same of what is published under *task_id* with these *options*."""
    return _identity(task_id, {**(options.get("headers") or {}), **options})


def _identity(task_id: object, headers: Context | Mapping[str, Any]) -> str:
    retries, step = _whole(headers.get("retries")), headers.get(STEP)
    nesting = str(_whole(headers.get("replaced_task_nesting")))
    if isinstance(step, dict) and step.get("id") == task_id:
        after = str(step.get("after")).encode("utf-8", "surrogatepass")
        nesting = f"{nesting}~{hashlib.sha256(after).hexdigest()[:16]}"
    return f"{storable(task_id)}:{retries}:{nesting}"


def step_of(task_id: str | None, options: Mapping[str, Any], ended: str | None) -> dict[str, Any]:
    """The headers of what a canvas publishes with these *options* after another task, or what is
    published after the body of the one that has *ended*; else none. What is published once more has
    them, or had none.

    The id of a task that comes from a body is not Celery's: whoever gives the same one twice means
    the same task.
    """
    after, headers = options.get("parent_id"), options.get("headers") or {}
    if not (after or ended) or HISTORY in headers:
        return {}
    step, follows = headers.get(STEP), {FOLLOWS: after or ended}
    if not (task_id and after) or (isinstance(step, dict) and step.get("id") == task_id):
        return follows
    return {**follows, STEP: {"id": task_id, "after": after}}


def next_in_chain(request: Context) -> str | None:
    """The id of the task that Celery publishes next for the chain of *request*, if there is one."""
    rest = request.chain
    step = rest[-1] if isinstance(rest, list) and rest else None
    options = step.get("options") if isinstance(step, dict) else None
    task_id = options.get("task_id") if isinstance(options, dict) else None
    return task_id if isinstance(task_id, str) else None


def chain_of(headers: Mapping[str, Any]) -> str:
    """The task that keeps its keys for the message with *headers*, its next step; empty if none."""
    step = headers.get(STEP)
    return str(step.get("after")) if isinstance(step, dict) and step.get("next") else ""


def kept_by_step(headers: Mapping[str, Any]) -> tuple[str, ...]:
    """The keys that :func:`chain_of` keeps for it."""
    step = headers.get(STEP)
    kept = step.get("next") if isinstance(step, dict) else None
    return tuple(map(str, kept)) if isinstance(kept, list) else ()


def predecessor(request: Context) -> str:
    """The id of the task after whose body that of *request* was published; empty if after none.

    A body may pass its own headers on: then they name another task than the one that publishes.
    """
    parent: str | None = request.parent_id
    return storable(parent) if parent and request.get(FOLLOWS) == parent else ""


def storable(task_id: object) -> str:
    """*task_id* as every store can keep it: one that is no UTF-8, or very long, ends with a hash.

    Such a one no store would ever take, and its task would be put off for ever.
    """
    text = str(task_id)
    if len(text) <= LONGEST_TASK_ID and is_text(text):
        return text
    head = text[:100].encode("utf-8", "backslashreplace").decode()
    return f"{head}~{hashlib.sha256(text.encode('utf-8', 'surrogatepass')).hexdigest()[:48]}"


def delivery_note(message: Any) -> dict[str, Any]:
    """What the main process notes of a *message* of kombu's, as it came."""
    headers = dict(message.headers or {})
    headers.pop(DELIVERY, None)
    return {
        "content_type": message.content_type,
        "content_encoding": message.content_encoding,
        "headers": headers,
        "properties": message.properties,
        "exchange": message.delivery_info.get("exchange"),
        "routing_key": message.delivery_info.get("routing_key"),
        "body": message.body if isinstance(message.body, bytes) else message.body.encode(),
    }


def delivery_of(request: Context) -> Mapping[str, Any]:
    """What the main process noted of this delivery, taken off the headers that travel on.

    Where no main process did (eager mode), only a nonce.
    """
    delivery = vars(request).pop(DELIVERY, None)
    if request.headers:
        request.headers.pop(DELIVERY, None)
    return delivery if isinstance(delivery, dict) else {"nonce": uuid.uuid4().hex}


@dataclass(frozen=True, slots=True)
class History:
    """How often a task was refused (``waits``) and since when (``since``, seconds since 1970).

    It was ``expected`` again at an instant. For ``idle`` seconds no worker took it after that, or
    its key was on hold, which is counted in up to ``held_until``. How often the store was
    ``unavailable``; how many of its runs ``lost`` their lock. ``key`` is the one in whose queue it
    waited, if it was woken there, and ``woken`` since when. ``carried`` is what sinks have said to
    their later selves.
    """

    task: str
    waits: int = 0
    since: float | None = None
    idle: float = 0.0
    expected: float | None = None
    held_until: float = 0.0
    unavailable: int = 0
    lost: int = 0
    key: str | None = None
    woken: float | None = None
    carried: Mapping[str, str] = field(default_factory=dict[str, str])

    @classmethod
    def read(cls, request: Context, task: str) -> History:
        """The past that *request* carries; a fresh one where it carries none, or nonsense."""
        header = request.get(HISTORY)
        if not isinstance(header, dict) or header.get("task") != task:
            return cls(task)
        late = _late(header)
        return cls(
            task,
            waits=_count(header.get("waits")),
            since=_instant(header.get("since")),
            idle=(_instant(header.get("idle")) or 0.0) + late,
            held_until=time.time() if late else _instant(header.get("held")) or 0.0,
            unavailable=_count(header.get("away")),
            lost=_count(header.get("lost")),
            key=text_or_none(header.get("key")),
            woken=_instant(header.get("called")),
            carried=_texts(header.get("carried")),
        )

    def waited(self, now: float) -> float:
        """Seconds for which it has waited for the key: those without a worker do not count."""
        return 0.0 if self.since is None else max(0.0, now - self.since - self.idle)

    def on_hold(self, begin: float, end: float) -> History:
        """The same, if its key was, or is going to be, on hold between these instants."""
        begin = max(begin, self.held_until, end if self.since is None else self.since)
        return replace(self, idle=self.idle + max(0.0, end - begin), held_until=max(begin, end))

    def header(self) -> dict[str, Any]:
        """What goes into the message."""
        return {
            "task": self.task,
            "waits": self.waits,
            "since": self.since,
            "idle": self.idle,
            "expected": self.expected,
            "away": self.unavailable,
            "lost": self.lost,
            **({"held": self.held_until} if self.held_until else {}),
            **({"carried": dict(self.carried)} if self.carried else {}),
        }


def carried_by(headers: Mapping[str, Any]) -> dict[str, str]:
    """What the message with *headers* carries for sinks."""
    header = headers.get(HISTORY)
    return _texts(header.get("carried")) if isinstance(header, dict) else {}


def was_woken(headers: Mapping[str, Any]) -> bool:
    """Whether the message with *headers* was, and not the attempt before it."""
    header = headers.get(HISTORY)
    if not isinstance(header, dict) or text_or_none(header.get("key")) is None:
        return False
    return header.get("task") == identity_in(headers)


def _late(header: Mapping[str, Any]) -> float:
    """How much too late a message comes that was refused, if nobody was there to take it."""
    expected = _instant(header.get("expected"))
    waited_in_the_store = header.get("called") is not None
    if expected is None or header.get("since") is None or waited_in_the_store:
        return 0.0
    late = time.time() - expected
    return late if late > turns.UNATTENDED / SECOND else 0.0


def _instant(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and 0 <= value < _NO_NUMBER else None


def _texts(value: object) -> dict[str, str]:
    if not isinstance(value, dict):
        return {}
    return {name: text for name, text in value.items() if is_text(name) and is_text(text)}


def text_or_none(value: object) -> str | None:
    """*value*, if it is text that every store can keep."""
    return value if isinstance(value, str) and is_text(value) else None


def _count(value: object) -> int:
    return max(0, _whole(value))


def _whole(value: object) -> int:
    """*value* as a whole number; 0 if it is no sensible one. A body may take back a count."""
    return int(value) if isinstance(value, int | float) and abs(value) < _NO_NUMBER else 0
