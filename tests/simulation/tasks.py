"""The application whose tasks are called, what their bodies do, and what becomes of them.

A body looks at its lease and writes behind a fence, as those of ``tests/chaos`` do; here every
rule is looked at as it happens.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from celery import Task
from celery.backends.base import KeyValueStoreBackend
from celery.exceptions import Reject
from celery.states import PROPAGATE_STATES, READY_STATES

from celery_dlock import (
    Debounce,
    FullJitter,
    Lease,
    Limit,
    LockedTask,
    Ordered,
    Queue,
    Replace,
    Reschedule,
    Shared,
    Skip,
    Unique,
    Wait,
    current_lease,
    lock,
)
from celery_dlock.core.events import Event
from celery_dlock.core.operations import Cancel, DeadLetter, Enter, Leave, Operation
from celery_dlock.core.state import (
    Claim,
    Holder,
    Left,
    Mode,
    Outcome,
    Park,
    Run,
    WaitMode,
    task_id_of,
)
from celery_dlock.errors import (
    BackendUnavailable,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)
from tests.simulation.broker import Application, Producer
from tests.simulation.coroutines import run
from tests.simulation.kernel import Kernel
from tests.simulation.plan import Ending


@dataclass(frozen=True, slots=True)
class Kind:
    """Options of a task, and how a task of it may end beside its body's end."""

    options: Mapping[str, Any]
    #: The store has its message as soon as it was asked.
    kept: bool = False
    may_skip: bool = False
    may_fail: tuple[str, ...] = ()


def at_once(key: str, steps: list[float], ending: str) -> int:
    """A limit that rises and falls, from one to three."""
    return (2, 3, 1, 2, 1, 3)[int(Kernel.here().now / 7) % 6]


#: At a key whose limit is another one every few seconds.
PLANNED: Mapping[str, Any] = {"lock_key": Limit("{key}-plan", at_once)}

PATIENT = Reschedule(backoff=FullJitter(base=0.5, cap=4.0), max_wait=None)

KINDS: Mapping[str, Kind] = {
    "queued": Kind({"lock_on_contention": Queue(max_wait=None)}),
    "rescheduled": Kind({"lock_on_contention": PATIENT}),
    "kept": Kind(
        {"lock_on_contention": Queue(keep=True, max_wait=None), "acks_late": False}, kept=True
    ),
    "reports": Kind({"lock_on_contention": Queue(max_wait=None), "track_started": True}),
    "skips": Kind({"lock_on_contention": Skip()}, may_skip=True),
    "skips_one": Kind({"lock_on_contention": Skip(then="continue")}, may_skip=True),
    "fails": Kind({"lock_on_contention": "fail"}, may_fail=("LockContended",)),
    "waits": Kind({"lock_on_contention": Wait(timeout=2.0)}, may_fail=("LockTimeout",)),
    "impatient": Kind({"lock_on_contention": Queue(max_wait=15.0)}, may_fail=("LockTimeout",)),
    "gives_up": Kind(
        {"lock_on_contention": Reschedule(backoff=FullJitter(1.0, 4.0), max_attempts=3)},
        may_fail=("LockTimeout",),
    ),
    "few": Kind(
        {"lock_on_contention": Queue(max_waiting=1, max_wait=None)}, may_fail=("LockContended",)
    ),
    "drops_oldest": Kind(
        {"lock_on_contention": Queue(max_waiting=1, overflow="drop_oldest")}, may_skip=True
    ),
    "drops_newest": Kind(
        {"lock_on_contention": Queue(max_waiting=1, overflow="drop_newest")}, may_skip=True
    ),
    "replaces": Kind({"lock_on_contention": Replace(max_wait=None)}, may_skip=True),
    "gives_way": Kind(
        {
            "lock_on_contention": Replace(running=True, max_wait=None),
            "lock_on_lost": "abort",
        },
        may_skip=True,
    ),
    "ordered": Kind({"lock_on_contention": Ordered(max_wait=None)}),
    "reserves": Kind({"lock_on_contention": Queue(max_wait=None), "lock_reserve": "chain"}),
    "slotted": Kind(
        {"lock_on_contention": Queue(max_wait=None), "lock_key": Limit("{key}-slots", 2)}
    ),
    "reader": Kind({"lock_on_contention": Queue(max_wait=None), "lock_key": Shared("{key}")}),
    "cools": Kind(
        {"lock_on_contention": Queue(max_wait=None), "lock_key": Limit("{key}", 1, cooldown=5.0)}
    ),
    "several": Kind({"lock_on_contention": Queue(max_wait=None), "lock_key": ["{key}", "both"]}),
    "limits": Kind(
        {
            "lock_on_contention": Queue(max_wait=None),
            "lock_key": [Limit("{key}-slots", 2), Limit("wide", 2), Shared("both")],
        }
    ),
    "impatient_limit": Kind(
        {
            "lock_on_contention": Queue(max_wait=15.0),
            "lock_key": ["{key}", Limit("wide", 2)],
        },
        may_fail=("LockTimeout",),
    ),
    "by_plan": Kind({"lock_on_contention": Queue(max_wait=None), **PLANNED}),
    "back_by_plan": Kind({"lock_on_contention": PATIENT, **PLANNED}),
    "published_by_plan": Kind({"lock_on_contention": Ordered(max_wait=None), **PLANNED}),
    "plan_and_all": Kind(
        {
            "lock_on_contention": Queue(max_wait=None),
            "lock_key": [Limit("{key}-plan", at_once), Limit("all", 2)],
        }
    ),
    "all_and_plan": Kind(
        {
            "lock_on_contention": Queue(max_wait=None),
            "lock_key": [Limit("all", 2), Limit("{key}-plan", at_once)],
        }
    ),
    "below": Kind(
        {
            "lock_on_contention": Queue(max_wait=None),
            "lock_key": ["{key}/below", Shared("{key}")],
        }
    ),
    "aborts": Kind({"lock_on_contention": Queue(max_wait=None), "lock_on_lost": "abort"}),
    "unique": Kind(
        {"lock_on_contention": Queue(max_wait=None), "lock_unique": Unique(by="{key}")},
        may_skip=True,
    ),
    "unique_start": Kind(
        {"lock_on_contention": PATIENT, "lock_unique": Unique("start", by="{key}")}, may_skip=True
    ),
    "periodic": Kind(
        {
            "lock_on_contention": Queue(max_wait=None),
            "lock_unique": Unique(by="{key}", period=10.0),
        },
        may_skip=True,
    ),
    "debounced": Kind({"lock_unique": Debounce(2.0, 6.0, by="{key}")}),
    "limited": Kind(
        {"lock_on_contention": Queue(max_wait=None), "soft_time_limit": 10, "time_limit": 30},
        # A pool of threads has no time limits: there its lock is lost, run after run.
        may_fail=("SoftTimeLimitExceeded", "TimeLimitExceeded", "LockLost"),
    ),
    "unsettled": Kind({"lock_on_contention": Queue(max_wait=None), "acks_on_failure": False}),
    "awaited": Kind({"lock_on_contention": Queue(max_wait=None)}),
}


#: Who takes the place of what waits for the same key, whatever that is.
TAKES_PLACES = frozenset({"drops_oldest", "replaces", "gives_way"})


@dataclass(eq=False, slots=True)
class Evidence:
    """What has happened in the schedule."""

    bars: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    effects: Counter[str] = field(default_factory=Counter)
    running: dict[object, Lease] = field(default_factory=dict)
    #: Whose message the store has had: each by its identity.
    taken: set[str] = field(default_factory=set)
    #: Tasks in the order in which their bodies have begun.
    began: dict[str, None] = field(default_factory=dict)
    requeued: set[str] = field(default_factory=set)
    #: The next steps of chains, and retries, at the head of a key; and by key, whose turn a release
    #: has kept.
    heads: set[tuple[str, str]] = field(default_factory=set)
    kept: dict[str, str] = field(default_factory=dict)
    #: Of what a final state was stored. A copy of a task that has failed may write RETRY or, where
    #: that is tracked, STARTED over it: Celery's backends keep no state but SUCCESS.
    ended: set[Any] = field(default_factory=set)
    #: Of what such a state was not SUCCESS.
    failed: set[Any] = field(default_factory=set)
    #: Of what the store heard that it is done, before any result was stored.
    unsaid: set[str] = field(default_factory=set)
    results: dict[Any, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)

    def has_ended(self, task_id: str) -> bool:
        return result_key(task_id) in self.ended

    def heard(self, operation: object, verdict: object) -> None:
        """The store has done that."""
        if isinstance(operation, Enter | Leave | Cancel | DeadLetter):
            self._between(operation, verdict)
        if isinstance(operation, Enter) and isinstance(verdict, Run | Park):
            self.taken.add(operation.claim.task)
        if isinstance(operation, Leave) and operation.outcome is Outcome.DONE:
            task_id = task_id_of(operation.claim.task)
            if not self.has_ended(task_id):
                self.unsaid.add(task_id)

    def granted(self, claim: Claim, holders: Sequence[Holder], now: int) -> None:
        """Note a key that has more *holders* than its newest one, *claim*, has asked for."""
        live = [holder for holder in holders if holder.expires > now]
        is_new = any(h.nonce == claim.nonce and h.since == now for h in live)
        if claim.mode is Mode.LIMITED and is_new and len(live) > claim.limit:
            who = ", ".join(holder.task for holder in live)
            self.wrong.append(f"more than {claim.limit} on {claim.key}: {who}")

    def _between(self, operation: Operation[Any], verdict: object) -> None:
        """Note who gets a key between two steps of a chain, or two attempts of an ordered task,
        after the first has released it. Where several may hold it others may have the next slot.
        """
        claim = operation.claim
        key, task, next_one = claim.key, claim.task, self.kept.get(claim.key)
        if claim.wait is WaitMode.HEAD:
            if isinstance(verdict, Park) and claim.mode is Mode.EXCLUSIVE:
                self.heads.add((key, task))
        elif task == next_one:
            del self.kept[key]
        elif next_one is not None and isinstance(verdict, Run):
            self.wrong.append(f"between two steps of a chain on {key}: {task} before {next_one}")
        elif (key, task) in self.heads:  # it has come, or is not to run
            self.heads.discard((key, task))
        if (key, claim.successor) in self.heads and isinstance(verdict, Left):
            self.kept[key] = claim.successor
            self.heads.discard((key, claim.successor))

    def crowded(self) -> None:
        """Note keys that more bodies trust to hold than may."""
        there: dict[str, dict[Any, None]] = defaultdict(dict)  # a body may have one by two leases
        for lease in self.running.values():
            for term in lease.terms:
                if term.noticed is None and term.trusted_until > Kernel.here().now:
                    there[term.key][term.claim] = None
        for key, claims in there.items():
            modes = {each.mode for each in claims}
            most = max(each.limit for each in claims)
            if len(modes) > 1 or (Mode.SHARED not in modes and len(claims) > most):
                who = ", ".join(each.task for each in claims)
                self.wrong.append(f"at once on {key}: {who}")

    def write(self, task: str, lease: Lease) -> None:
        """Behind the fence, and once a task."""
        for term in lease.own:
            if term.claim.mode is Mode.SHARED:
                continue
            if term.token < self.bars[term.resource]:
                raise StaleFencingToken(term.resource, term.token, self.bars[term.resource])
            self.bars[term.resource] = term.token
        self.effects[task] += not self.effects[task]

    @contextmanager
    def at_work(self, lease: Lease) -> Iterator[None]:
        """Under *lease*."""
        me = object()
        self.running[me] = lease
        try:
            self.crowded()
            yield
        finally:
            del self.running[me]


_evidence: list[Evidence] = [Evidence()]


def evidence() -> Evidence:
    return _evidence[-1]


def begin() -> Evidence:
    _evidence[:] = [Evidence()]
    return evidence()


def result_key(task_id: str) -> bytes:
    """Under which the results keep what became of it."""
    return f"celery-task-meta-{task_id}".encode()


class Results(KeyValueStoreBackend):  # type: ignore[misc]
    """A backend of results that never fails."""

    persistent = False

    def get(self, key: Any) -> Any:
        if Kernel.here().running is not None:
            Kernel.here().pause("to read a result")
        return evidence().results.get(key)

    def set(self, key: Any, value: Any) -> None:
        Kernel.here().pause("to store a result")
        evidence().results[key] = value
        status = json.loads(value).get("status")
        if status in READY_STATES:
            evidence().ended.add(key)
        if status in PROPAGATE_STATES:
            evidence().failed.add(key)

    def delete(self, key: Any) -> None:
        evidence().results.pop(key, None)

    def mget(self, keys: Any) -> Any:
        return [self.get(key) for key in keys]


class Broken(Exception):
    """What a body raises that fails."""


def body(self: Any, key: str, steps: list[float], ending: str, *, lease: Lease) -> str:
    evidence().began.setdefault(self.request.id)
    with evidence().at_work(lease):
        for step in steps:
            _work(step)
        if ending == Ending.NESTS:
            _nest(key, lease)
        elif ending == Ending.AWAITS:
            run(_await(key, lease))
        _end(self, ending, lease, steps)
        _write(self.request.id, lease)
    return "ran"


async def coroutine(
    self: Any, key: str, steps: list[float], ending: str, *, fencing_token: int
) -> str:
    """The same, as one, which is handed its token."""
    lease = current_lease()
    if fencing_token != lease.fencing_token:
        evidence().wrong.append(f"{lease.owner} was handed {fencing_token}")
    evidence().began.setdefault(self.request.id)
    with evidence().at_work(lease):
        for step in steps:
            await _pass(step)
        if ending in (Ending.NESTS, Ending.AWAITS):
            await _await(key, lease)
        _end(self, ending, lease, steps)
        _write(self.request.id, lease)
    return "ran"


class Awaits(Task):  # type: ignore[misc]
    """A project's own base class, of tasks whose bodies are coroutines."""

    abstract = True

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return run(self.run(*args, **kwargs))


class LockedAwaits(LockedTask, Awaits):
    abstract = True


def _work(step: float) -> None:
    Kernel.here().wait(step)
    evidence().crowded()


async def _pass(step: float) -> None:
    await asyncio.sleep(step)
    evidence().crowded()


def _write(task: str, lease: Lease) -> None:
    kernel, seen = Kernel.here(), evidence()
    kernel.pause("to write")
    seen.crowded()
    seen.write(task, lease)
    kernel.pause("having written")


def _end(self: Any, ending: str, lease: Lease, steps: list[float]) -> None:
    retries = self.request.retries
    match Ending(ending):
        case Ending.OK | Ending.NESTS | Ending.AWAITS:
            pass
        case Ending.FAILS:
            raise Broken
        case Ending.RETRIES:
            if retries < 2:
                raise self.retry(countdown=2 * retries, max_retries=5)
        case Ending.REQUEUES:
            if self.request.id not in evidence().requeued:
                evidence().requeued.add(self.request.id)
                raise Reject(requeue=True)
        case Ending.IS_REPLACED:
            if not self.request.replaced_task_nesting:
                raise self.replace(self.s(self.request.args[0], steps, Ending.OK))
        case Ending.EXTENDS:
            lease.extend(60.0)


def _nest(key: str, lease: Lease) -> None:
    """Two bodies may meet in here, each with what the other one wants."""
    block = lock([key, "inner"], timeout=3.0)
    with _not_for_itself(lease), block as inner, evidence().at_work(inner):
        _work(1.0)


async def _await(key: str, lease: Lease) -> None:
    with _not_for_itself(lease):
        async with lock([key, "inner"], timeout=3.0) as inner:
            with evidence().at_work(inner):
                await _pass(1.0)


@contextmanager
def _not_for_itself(lease: Lease) -> Iterator[None]:
    try:
        yield
    except LockTimeout as late:
        if late.key in lease.keys:
            evidence().wrong.append(f"{lease.owner} has waited for itself, at {late.key}")
        raise


#: What code is told that holds a key by ``lock()``, and does not get it or loses it.
TOLD = (LockContended, LockLost, BackendUnavailable, StaleFencingToken)


def plain(name: str, key: str, steps: Sequence[float], ending: Ending) -> None:
    """Code beside the tasks, in a process of its own, that needs *key*."""
    if ending is Ending.AWAITS:
        run(_serve(name, key, steps))
        return
    several = ending is Ending.NESTS
    block = lock([key, "inner"] if several else key, timeout=0.0 if ending is Ending.FAILS else 9.0)
    with suppress(*TOLD):
        if ending is Ending.RETRIES:  # in an order that is that of no task
            with lock("inner", timeout=3.0), lock(key, timeout=3.0) as lease:
                _hold(name, lease, steps)
            return
        if ending is Ending.OK or several:
            with block as lease:
                _hold(name, lease, steps)
            return
        lease = block.acquire()
        try:
            _hold(name, lease, steps)
        finally:
            block.release()


def _hold(name: str, lease: Lease, steps: Sequence[float]) -> None:
    with evidence().at_work(lease):
        for step in steps:
            _work(step)
        _write(name, lease)


async def _serve(name: str, key: str, steps: Sequence[float]) -> None:
    """Requests that need *key*; only whoever sent the first one waits for its answer."""
    requests = [asyncio.create_task(_request(f"{name}/{n}", key, steps)) for n in range(3)]
    await asyncio.sleep(2.0)
    for given_up in requests[1:]:
        given_up.cancel()
    for ended in await asyncio.gather(*requests, return_exceptions=True):
        if isinstance(ended, Exception):
            raise ended


async def _request(name: str, key: str, steps: Sequence[float]) -> None:
    with suppress(*TOLD):
        async with lock(key, timeout=9.0) as lease:
            with evidence().at_work(lease):
                for step in steps:
                    await _pass(step)
                _write(name, lease)


def note(event: Event) -> None:
    """The sink."""
    kernel = Kernel.here()
    if kernel.tell is not None:
        kernel.tell(f"  {event}")


def application() -> Application:
    app = Application("simulation")
    app.conf.update(
        broker_url="memory://",
        result_backend="tests.simulation.tasks:Results",
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        result_chord_retry_interval=5.0,
        dlock_url="simulated://",
        dlock_broker="simulated",
        dlock_ttl=30.0,
        dlock_sinks=[note],
        worker_hijack_root_logger=False,
    )
    for name, kind in KINDS.items():
        options = {"lock_key": "{key}", **kind.options}
        awaits = name == "awaited"
        make = app.task(
            name=name, base=LockedAwaits if awaits else LockedTask, bind=True, **options
        )
        make(coroutine if awaits else body)
    app.amqp.Producer = Producer
    app.finalize()
    app.set_current()
    app.set_default()
    return app
