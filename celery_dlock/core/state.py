"""The values that the rules of :mod:`celery_dlock.core.machine` speak of.

All are frozen. All instants and durations are integers in microseconds, on the store's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Generic, TypeVar

#: How many live waiting entries a store hands to an operation.
WINDOW = 32

#: After so many unanswered wakes, which take ten minutes, a turn no longer reserves its slot: a
#: broker may have a backlog of minutes, but after that there is hardly a worker for the task.
WAKES_RESERVED = 7

#: For so long (a day) the store remembers that a task gave way to a newer one, or was revoked while
#: its message was elsewhere.
GAVE_WAY = 86_400_000_000

#: Nor does a turn whose message has been handed back for so long: every worker sweeps within
#: seconds, so none of them has the broker of this message.
STRANGER_RESERVED = 45_000_000


class Mode(StrEnum):
    """How a key is held: alone, together with all other readers, or as one of a ``limit``.

    No two modes hold a key together. A limit of 1 is a limit all the same.
    """

    EXCLUSIVE = "exclusive"
    SHARED = "shared"
    LIMITED = "limited"


class WaitMode(StrEnum):
    """What a claim leaves behind when the key is taken.

    ``LOOK`` is for a delivery that may wait, and first asks without its message: ``NOT``, and next
    ``QUEUE``. ``ENQUEUE`` leaves its message with the store in any case: it asks for a turn, not
    for the key. ``HEAD`` asks for the next turn: its message goes before all others, and no queue
    is too full for it.
    """

    NOT = "not"
    PLACE = "place"
    LOOK = "look"
    QUEUE = "queue"
    ENQUEUE = "enqueue"
    HEAD = "head"


class Outcome(StrEnum):
    """How a delivery ended, which decides what becomes of its task.

    ``DONE``: a final result; a later duplicate is dropped. ``FAILED``: the same, and the result is
    a failure, after which a key that its claim ``shuts`` is put on hold. ``OVER``: this delivery
    ends and the task goes on elsewhere or not at all (retry, requeue, replace, ignore).
    ``REPEAT``: it must run again, and the caller asks whether anybody still has its message; if no
    body has ``begun``,
    its turn is kept for it, where it had one. ``ABANDONED``: the body
    ended without a word (killed, shut down), which counts as a lost run. ``UNUSED``: no body began,
    because nobody heard whether the key was given, or it hands its message back to the broker; what
    waits stays, and the task has had its turn.
    """

    DONE = "done"
    FAILED = "failed"
    OVER = "over"
    REPEAT = "repeat"
    ABANDONED = "abandoned"
    UNUSED = "unused"

    @property
    def is_final(self) -> bool:
        """Whether the task has its result."""
        return self in (Outcome.DONE, Outcome.FAILED)


class Ending(StrEnum):
    """Why a parked task is woken although it is not its turn: so that it ends, visibly."""

    TIMED_OUT = "timed out"
    DROPPED = "dropped"
    REVOKED = "revoked"


def task_id_of(task: str) -> str:
    """The id that people know of ``task_id:retries:nesting``; it may have colons of its own."""
    return task.rsplit(":", 2)[0]


def ask_order(key: str, mode: Mode) -> tuple[bool, str]:
    """The sort key of a task's keys: it asks for the smallest first, and leaves equals in order.

    So for keys without a limit by name, and a reader and a writer of a key agree; then for limits
    as they are declared: the value of a limit may change while tasks wait.
    """
    is_limit = mode is Mode.LIMITED
    return is_limit, "" if is_limit else key


@dataclass(frozen=True, slots=True)
class Claim:
    """One delivery of one task asks for one key.

    ``task`` identifies what waits or finishes (``task_id:retries:nesting``); ``nonce`` is new for
    each delivery, so a duplicate is never taken for the owner. ``patience`` is how long a
    place is kept, or a turn of which nobody heard, ``done_ttl`` how long a finished task is
    remembered (0: not at all). For ``cooldown`` after it was granted its slot stays closed,
    whatever becomes of it. ``limit`` is how many may hold the key together, in that mode: the
    newest claim that asks decides for all. 0 says nothing of it.

    For a claim that queues, ``gives_up`` is how long it waits at most, ``max_waiting`` how many
    messages of its task's calls with the same keys may wait there (0: no end, for both),
    ``drop_oldest`` whether the first of these makes room, or this one has to go, and ``keep``
    whether the store has the message also while the task runs. If the publisher was promised the
    order, it is ``ordered``: then no other overtakes it, however long it takes. A message for which
    only the turn is asked is due after ``delay``.

    A holder that ``gives_way`` is asked to stop when another task of its ``name`` comes to wait
    that ``supersedes`` it.

    ``name`` and ``where`` are for people: what asks, a task by its name, and in which process, as
    in ``worker@host:4711``. ``entry`` is which entry of its task's lock it is (from 1 on): who
    waits by the same entry of a task of that name is held as the newest one is that runs; 0 speaks
    for nobody else. ``keyset`` tells its task's calls apart where each has several keys.

    Of a claim that leaves: ``successor`` is the task for which the key stays reserved, for as long
    as its ``patience``; its own task if that waits for the key ``elsewhere``. ``again`` says that
    it may have left before, and did not hear the answer. If no body has ``begun`` under it, or a
    person takes it away, nothing cools down. If its task fails for good a key that it ``shuts`` is
    put on hold, so that none of those behind it runs, and its message is a dead letter.
    """

    key: str
    task: str
    nonce: str
    ttl: int
    mode: Mode = Mode.EXCLUSIVE
    limit: int = 1
    wait: WaitMode = WaitMode.NOT
    patience: int = 0
    done_ttl: int = 0
    cooldown: int = 0
    gives_up: int = 0
    max_waiting: int = 0
    drop_oldest: bool = False
    keep: bool = False
    ordered: bool = False
    delay: int = 0
    gives_way: bool = False
    supersedes: bool = False
    successor: str = ""
    elsewhere: str = ""
    again: bool = False
    begun: bool = True
    shuts: bool = False
    name: str = ""
    where: str = ""
    entry: int = 0
    keyset: str = ""

    @property
    def owner(self) -> str:
        return f"{self.task}|{self.nonce}"

    @property
    def order(self) -> tuple[bool, str]:
        """See :func:`ask_order`."""
        return ask_order(self.key, self.mode)

    @property
    def has_message(self) -> bool:
        """Whether its message may wait here; without one a task is a matter of its broker."""
        return self.wait in (WaitMode.QUEUE, WaitMode.LOOK)

    @property
    def enqueues(self) -> bool:
        """Whether it asks for a turn, and not for the key: no worker is there to run its task."""
        return self.wait in (WaitMode.ENQUEUE, WaitMode.HEAD)


@dataclass(frozen=True, slots=True)
class Holder:
    """A granted claim, until it ``expires``.

    ``limit`` is that of the key, as its newest claim has asked; all that hold it, have a turn at it
    or cool down carry the same. Until ``cools`` its slot stays closed when it is gone (0: not at
    all). ``replaced_by`` is the newer task to which it is asked to give way: empty while there is
    none, ``None`` if it need not.
    """

    task: str
    nonce: str
    mode: Mode
    limit: int
    slot: int
    token: int
    since: int
    expires: int
    name: str = ""
    where: str = ""
    cools: int = 0
    replaced_by: str | None = None

    @property
    def owner(self) -> str:
        """As its :class:`Claim` has it."""
        return f"{self.task}|{self.nonce}"

    @property
    def who(self) -> str:
        """For people: its task, and the process in which it runs."""
        task_id = task_id_of(self.task)
        if not self.name:
            return f"task {task_id}"
        is_block = task_id.startswith(f"{self.name}@")  # as of lock(): the id tells nobody more
        return f"{self.name if is_block else f'{self.name}[{task_id}]'} on {self.where}"


@dataclass(frozen=True, slots=True)
class OperatorHold:
    """The person ``by`` keeps a key closed ``until`` an instant, ``because`` of something.

    It has been closed by people ``since``. No other hold has its ``name``.
    """

    name: str
    by: str
    because: str
    since: int
    until: int

    @property
    def who(self) -> str:
        """For people: who, and why."""
        return f"{self.by}: {self.because}"


@dataclass(frozen=True, slots=True)
class Cooling:
    """A slot that nobody holds and that stays closed ``until`` an instant, as after a cooldown.

    It has the ``name`` of the grant of which it is left, its nonce.
    """

    name: str
    mode: Mode
    limit: int
    until: int


@dataclass(frozen=True, slots=True)
class Grant:
    """A turn that has come. It reserves the slot until taken, if it :attr:`reserves`.

    A parked task is woken again each time ``due`` has passed, without a limit: a broker outage must
    not kill it. From ``gives_up`` on it is woken to time out. ``woken`` counts the wakes without an
    answer, ``handed_back`` is since when only workers of another broker have found it. A place is
    not woken at all; its grant is dropped when ``due`` has passed. *taker* is the delivery that
    ends the task, so that no second one does. ``arrived`` is when its task began to wait, if so.
    It is ``early`` until it is ``due`` for the first time: so long it makes room for a newer call
    of that ``name`` and ``keyset``.

    It gives way to the newer task ``by``, of the name ``by_name``, unless another task takes it. A
    task that gave way while it ran, and whose message the store does not have, has a turn as well,
    so that it ends if it comes again. A turn may be kept for a task that waits for the key
    ``elsewhere``.
    """

    task: str
    mode: Mode
    limit: int
    parked: bool
    woken: int
    due: int
    ending: Ending | None = None
    taker: str = ""
    gives_up: int | None = None
    handed_back: int | None = None
    ordered: bool = False
    by: str = ""
    by_name: str = ""
    early: bool = False
    name: str = ""
    keyset: str = ""
    arrived: int | None = None
    elsewhere: str = ""

    @property
    def waits(self) -> bool:
        """Whether a task waits for this turn; one that has only given way does not."""
        return self.parked or self.ending is None

    @property
    def unanswered(self) -> bool:
        """Whether it was woken without an answer for so long that no worker seems to take it."""
        strange_for = 0 if self.handed_back is None else self.due - self.handed_back
        return self.woken > WAKES_RESERVED or strange_for > STRANGER_RESERVED

    @property
    def reserves(self) -> bool:
        """Whether the slot is kept for it: not for a task that is to end, nor for a message that is
        not due yet, and not for ever.

        If the order was promised it is kept until the turn is taken or has to end.
        """
        return self.ending is None and (self.ordered or not (self.unanswered or self.early))


@dataclass(frozen=True, slots=True)
class Waiting:
    """An entry of the queue; ``expires`` is ``None`` for a parked task, which never expires.

    ``arrived`` is when its task first asked: a place that asks again keeps it. ``gives_up`` is when
    a parked task has waited for long enough, if there is such an end; later by what the key was
    ``paused``. ``name``, ``entry`` and ``keyset`` are those of its claim; without an entry it is
    held as it says itself, as after it was woken and the key was not free in its ``mode``. It is
    not woken before it is ``due``.
    """

    task: str
    mode: Mode
    rank: int
    arrived: int
    expires: int | None
    gives_up: int | None = None
    ordered: bool = False
    name: str = ""
    entry: int = 0
    keyset: str = ""
    due: int = 0

    @property
    def parked(self) -> bool:
        return self.expires is None


class Cause(StrEnum):
    """Why a message is dead: what it was published for will not happen without a person."""

    RUNS_LOST = "runs lost"
    UNREADABLE = "unreadable"
    UNKNOWN_TASK = "unknown task"
    FAILED = "failed"
    UNPUBLISHABLE = "unpublishable"
    OTHER_BROKER = "of another broker"


@dataclass(frozen=True, slots=True)
class Dead:
    """A message that is out of the queue and kept for a person to look at, since ``at``."""

    task: str
    mode: Mode
    cause: Cause
    at: int


@dataclass(frozen=True, slots=True)
class KeyState:
    """A key's condition, as far as one operation needs it.

    ``parked`` counts the parked entries of the *whole* queue; ``first`` and ``last`` are the
    smallest and the largest rank in it (0 and 0 when it is empty). ``dead`` are the dead letters of
    this operation; before a replay, the one that is to wait again. ``paused`` is how much later
    the waiting tasks give up than their ``gives_up`` says: for so long there was no worker, or the
    key is on ``hold``, up to its end. ``limit`` is what the slots said as an operation began, or
    its claim; no store keeps it (0: nobody has said it).
    """

    holders: tuple[Holder, ...] = ()
    grants: tuple[Grant, ...] = ()
    waiting: tuple[Waiting, ...] = ()
    parked: int = 0
    first: int = 0
    last: int = 0
    done: frozenset[str] = frozenset()
    lost: tuple[tuple[str, int], ...] = ()
    dead: tuple[Dead, ...] = ()
    paused: int = 0
    cooling: tuple[Cooling, ...] = ()
    hold: OperatorHold | None = None
    limit: int = 0


@dataclass(frozen=True, slots=True)
class Run:
    """The key is granted. ``token`` is 0 for readers, which have none."""

    slot: int
    token: int


@dataclass(frozen=True, slots=True)
class Park:
    """The store has the message; acknowledge it.

    ``holder`` is who has the key, for people: of several the one whose lease ends first; ``hold``
    is what a person has put it on.
    """

    holder: Holder | None = field(default=None, compare=False)
    hold: OperatorHold | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Busy:
    """Held or reserved by another; ``holder`` is ``None`` when it is only reserved.

    ``left`` is what remains of the ``hold`` that a person has put it on, else of the holder's
    lease, or for how long the key cools down; ``parked`` is how many messages wait, and ``full``
    says that they are as many as may wait.
    """

    holder: Holder | None
    left: int
    parked: int
    full: bool = False
    hold: OperatorHold | None = None


@dataclass(frozen=True, slots=True)
class Same:
    """Another delivery of this very task is running; this one must never write a result."""

    holder: Holder
    left: int


@dataclass(frozen=True, slots=True)
class End:
    """The task's turn will not come: the task is to end, for this reason.

    ``by`` is the newer task for which it was asked to give way, if it was.
    """

    ending: Ending
    by: str = ""


class Reason(StrEnum):
    """Why a duplicate is dropped."""

    DONE = "done"
    WAITING = "waiting"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class Drop:
    """A duplicate of something finished or already waiting, or a message that is dead now."""

    reason: Reason


@dataclass(frozen=True, slots=True)
class Left:
    """Released. ``carried``: the task is done, or somebody else has its message."""

    carried: bool


@dataclass(frozen=True, slots=True)
class NotHeld:
    """The claim was gone already; nothing that is held was touched."""

    carried: bool = False


@dataclass(frozen=True, slots=True)
class Renewed:
    """The lease now ends at ``expires``."""

    expires: int


@dataclass(frozen=True, slots=True)
class Replaced:
    """The holder is asked to give way to the task ``by``; its lease was not extended."""

    by: str


@dataclass(frozen=True, slots=True)
class Unknown:
    """The part of the store that has this key did not answer; others did."""


EnterVerdict = Run | Park | Busy | Same | End | Drop
LeaveVerdict = Left | NotHeld
RenewVerdict = Renewed | Replaced | NotHeld | Unknown

V_co = TypeVar("V_co", covariant=True)


@dataclass(frozen=True, slots=True)
class Step(Generic[V_co]):
    """The result of one rule: the next state, the verdict, and whose messages to publish now.

    The message of the operation replaces that of the task that it ``rewrites``.
    """

    state: KeyState
    verdict: V_co
    wakes: tuple[Grant, ...] = ()
    rewrites: str = ""
