"""For tests of a project: a clock that stands still, locks in memory, a holder that is too late.

The last is a worker that was paused past its lease, played inside one test. Nothing is waited for.
The lock is taken in the application's own store and released, because to the next holder an expired
lease and a released one look alike; the late holder itself learns nothing of it. That is the
strictest case, a pause right after its last look at the lease: what refuses it now is the resource,
or nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, cast

from celery._state import _task_stack

from celery_dlock.core.lease import Lease, Term
from celery_dlock.core.state import Mode
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.locks.current import holding
from celery_dlock.locks.lock_order import LockOrder, all_watched, watch
from celery_dlock.runtime import real_app, runtime
from celery_dlock.tasks.acquisition import Acquisition
from celery_dlock.tasks.block import locked_block
from celery_dlock.tasks.task import LockedTask
from celery_dlock.testing.isolation import isolated


class ManualClock:
    """Microseconds since the epoch, as a store's ``BackendOptions.clock``.

    A copy that is pickled into another process stands at the same instant and moves on its own.
    """

    def __init__(self, now: int = 1_800_000_000_000_000) -> None:
        self.now = now

    def __call__(self) -> int:
        return self.now

    def advance(self, seconds: float) -> None:
        """Move on by *seconds*; a negative number steps back, as real clocks do."""
        self.now += round(seconds * 1_000_000)


@contextmanager
def in_memory(app: Any) -> Iterator[ManualClock]:
    """Keep the locks, the messages and the results of *app* in memory, whatever is configured.

    It gives the clock of the locks. Leases expire, and waiting tasks are woken, when the test moves
    it. Events reach neither the history nor the sinks that ``dlock_sinks`` names, only callables.
    The application's configuration is not changed, and afterwards it has its own broker, result
    backend and lock store again. A block within the block, or within :func:`inline_worker`, shares
    clock and locks. Raises :exc:`~celery_dlock.ConfigurationError` for a wrong configuration.
    """
    with isolated(app, ManualClock()) as clock:
        yield clock


@contextmanager
def checked_lock_order(app: Any) -> Iterator[None]:
    """Locks of *app* are nested in one order, in the block and since the first such block.

    Raises :exc:`AssertionError` in the end if two were nested in an order inverse to one before,
    with both places.
    """
    order = watch(real_app(app))
    with _without_inversions(lambda: [order]):
        yield


@contextmanager
def every_lock_order_checked() -> Iterator[None]:
    """The same, of the locks of every application."""
    with all_watched() as orders, _without_inversions(orders):
        yield


@contextmanager
def _without_inversions(orders: Callable[[], Collection[LockOrder]]) -> Iterator[None]:
    before = {order: len(order.inversions) for order in orders()}
    yield
    new = [line for order in orders() for line in order.inversions[before.get(order, 0) :]]
    if new:
        raise AssertionError("\n".join(new))


@dataclass(frozen=True, slots=True)
class StaleHolder:
    """It has lost the lock, and still trusts its ``lease``. Made by :func:`stale_holder`."""

    task: Any
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    lease: Lease
    store: object

    def wakes_up(self) -> StaleFencingToken | LockLost:
        """Run the body as if nothing had happened, and return the error that refused it.

        Raises :exc:`AssertionError` if the body runs to its end. Any other error of the body is
        raised as it is.
        """
        __tracebackhide__ = True
        kwargs = self.task.lock_definition.injected(self.kwargs, self.lease)
        try:
            with _delivered(self.task, self.args, self.kwargs), holding(self.lease, self.store):
                result = self.task.lock_body(*self.args, **kwargs)
        except (StaleFencingToken, LockLost) as refusal:
            return refusal
        raise AssertionError(self._nothing_refused_it(result))

    def _nothing_refused_it(self, result: object) -> str:
        tokens = ", ".join(f"{t.resource!r} with token {t.token}" for t in self.lease.own)
        return (
            f"{self.task.name} came too late and nothing refused it: it held {tokens}, was paused "
            f"past its lease, woke up and ran to its end (result: {result!r}). Begin the "
            "transaction that writes with celery_dlock.fencing.admit(connection), and let what it "
            "raises roll the transaction back. If the task does that, nobody has written with a "
            "newer token in between: call the task once before wakes_up()"
        )


def stale_holder(task: Any, *args: Any, **kwargs: Any) -> StaleHolder:
    """A worker that took the lock of ``task(*args, **kwargs)`` and was paused past its lease.

    The lock is free when this returns. Let the next task take it and write, then call
    :meth:`StaleHolder.wakes_up`.

    Raises :exc:`~celery_dlock.ConfigurationError` for a task without a lock or with a read lock,
    and :exc:`~celery_dlock.LockContended` if the lock is held.
    """
    _require_locked(task)
    definition = task.lock_definition
    if all(access.mode is Mode.SHARED for access in definition.access):
        raise ConfigurationError(
            f"{task.name} holds a read lock: it has no fencing token, and nothing to write"
        )
    definition.refuse_injected(task.name, kwargs)
    keys = definition.limited(definition.keys(args, kwargs), args, kwargs)
    warm = {key: replace(access, cooldown=0.0) for key, access in keys.access.items()}
    begin = partial(
        Acquisition.begin,
        task.app,
        replace(keys, access=warm),
        name=task.name,
        ttl=definition.ttl,
        timeout=0,
    )
    with locked_block(begin) as held:
        lease = _believed(held, keys.parents)
        return StaleHolder(task, args, kwargs, lease, runtime(task.app).backend)


def _require_locked(task: object) -> None:
    if not isinstance(task, LockedTask):
        raise ConfigurationError(f"{task!r} is no locked task: nothing of it can come too late")


@contextmanager
def _delivered(task: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Iterator[None]:
    """What a worker does around a body, as far as a body sees it: the task has a request."""
    running = cast("Any", _task_stack)
    running.push(task)
    task.push_request(id=str(uuid.uuid4()), args=args, kwargs=dict(kwargs))
    try:
        yield
    finally:
        task.pop_request()
        running.pop()


def _believed(held: Lease, parents: Sequence[str]) -> Lease:
    """The lease of one whose clock stood still while it was paused: it can always be trusted."""
    paused = tuple(Term(t.claim, t.slot, t.token, 0.0, monotonic=lambda: 0.0) for t in held.terms)
    return Lease(
        paused,
        held.guarantee,
        extend=lambda terms, seconds: None,
        parents=parents,
        row_of=held.row_of,
    )
