"""What is explored: the tasks of a small world, and what may go wrong in it."""

from __future__ import annotations

from dataclasses import dataclass

from celery_dlock.core.state import Mode, WaitMode

#: What can go wrong. Each costs one of a configuration's faults.
CRASH = "crash"  # a worker is gone; late acknowledgement brings its message back
CHILD = "child"  # the body's process is killed and its parent says so
LEASE = "lease"  # a lease ends although its holder lives (a pause)
DISTRUST = "distrust"  # the body gives up a lock that the store still grants it
OVERDUE = "overdue"  # a call counts as unanswered although its message is under way
LATE = "late"  # a place or a reservation expires although its task is under way
SWEEPER = "sweeper"  # the sweeper dies before it has published
PUBLISHER = "publisher"  # so does one who published, revoked or replayed a task
REPLY = "reply"  # an operation took effect and the answer is lost
REDELIVER = "redeliver"  # the broker delivers a message that is still being worked on
FAULTS = frozenset(
    {CRASH, CHILD, LEASE, DISTRUST, OVERDUE, LATE, SWEEPER, PUBLISHER, REPLY, REDELIVER}
)
#: No fault, but as rare, in worlds that name it: a person keeps the key closed for a while.
HOLD = "hold"


@dataclass(frozen=True, slots=True)
class Task:
    """What a task asks for. ``retries_as``: its body ends in a retry, which is that other task;

    ``reserves``: the key stays reserved for it. ``becomes``: while a new version is deployed,
    workers of both take its deliveries. ``gives_up``: it waits in the queue for a time only, which
    can be over at any moment. ``replaces``: one may wait, and makes room for a newcomer; else it is
    refused. ``newest``: it gives way to the others while it runs, and they to it. ``keep``: the
    store has its message while it runs. ``ordered``: it takes its place when it is published.
    ``looks``: it asks for the key before it queues for it. ``revocable``: it may be revoked at any
    moment. ``unknown``: there are workers that do not know it. ``foreign``: there are sweepers that
    cannot publish it. ``unanswered``: it may be called in vain for long, although it comes in the
    end. ``by_main``: the worker's main process may park it.
    """

    wait: WaitMode = WaitMode.QUEUE
    mode: Mode = Mode.EXCLUSIVE
    limit: int = 1
    retries_as: int | None = None
    reserves: bool = False
    becomes: Task | None = None
    gives_up: bool = False
    max_waiting: int = 0
    replaces: bool = False
    newest: bool = False
    keep: bool = False
    ordered: bool = False
    looks: bool = False
    revocable: bool = False
    unknown: bool = False
    foreign: bool = False
    unanswered: bool = False
    by_main: bool = False


@dataclass(frozen=True, slots=True)
class Config:
    """One world to explore: *faults* of the *kinds* may happen, any of them, in any order.

    ``early_ack``: a message is acknowledged as it is delivered, and the broker never delivers it
    again. ``most_lost`` and ``most_calls`` are put in the place of ``MAX_LOST_RUNS`` and
    ``WAKES_BEFORE_DEAD`` (0: they stay as they are, out of reach). The rules only ask whether a
    count is 0 and whether it has come to that number, so a lower one leaves out nothing but
    repetitions.
    """

    name: str
    tasks: tuple[Task, ...]
    workers: int = 2
    faults: int = 0
    kinds: frozenset[str] = FAULTS
    early_ack: bool = False
    cooldown: bool = False
    most_lost: int = 0
    most_calls: int = 0
