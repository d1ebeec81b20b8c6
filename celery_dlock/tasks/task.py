"""A Celery task that takes its lock before the body runs."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, cast

from celery import Celery, Task, signals
from celery.exceptions import Ignore

from celery_dlock.contention import Complete, Policy
from celery_dlock.core.current import current_lease, held_term
from celery_dlock.core.keys import Key
from celery_dlock.core.lease import Lease
from celery_dlock.errors import ConfigurationError, LockLost, StaleFencingToken
from celery_dlock.tasks.abort import Abort, handing_on, shielded
from celery_dlock.tasks.children import WatchChildren
from celery_dlock.tasks.definition import Definition, OnLost, refuse_misspelt
from celery_dlock.tasks.execution import EXECUTION, Execution
from celery_dlock.tasks.hold import hold
from celery_dlock.tasks.leaving import leave_after_result, leave_before_the_body
from celery_dlock.tasks.ordered import Outbox, ordered_here
from celery_dlock.tasks.publish import run_again
from celery_dlock.tasks.revoking import EndRevoked
from celery_dlock.tasks.runtime import runtime
from celery_dlock.tasks.sweeper import Sweeper
from celery_dlock.tasks.taking import take
from celery_dlock.tasks.telling import RetryTold
from celery_dlock.tasks.useless import BuryUndecodable, bury_rejected, bury_unknown
from celery_dlock.tasks.worker import CheckAtStart

#: What the options of a lock begin with where they are those of a task.
LOCK = "lock_"


class _WhenAsked:
    """The definition of a task that Celery shows to other threads before it has bound it."""

    def __get__(self, task: object, owner: type[LockedTask]) -> Definition:
        return owner.define_lock()


class LockedTask(Task):  # type: ignore[misc]
    """Base class of tasks that run under a lock: ``@app.task(base=LockedTask, lock_key=…)``.

    The options are those of :func:`~celery_dlock.locked_task` with the prefix ``lock_``. Wrong
    ones raise :exc:`~celery_dlock.ConfigurationError` when Celery finalizes the task. A class that
    inherits from it and from another task class names it first.
    """

    abstract = True
    Request = "celery_dlock.tasks.request:LockedRequest"

    lock_key: ClassVar[Key | Sequence[Key] | None] = None
    lock_ttl: ClassVar[float | None] = None
    lock_on_contention: ClassVar[str | Policy | None] = None
    lock_limit: ClassVar[int] = 1
    lock_shared: ClassVar[bool] = False
    lock_max_hold: ClassVar[float | None] = None
    lock_parents: ClassVar[Key | Sequence[Key]] = ()
    lock_on_lost: ClassVar[OnLost] = "flag"

    lock_definition: ClassVar[Definition] = cast("Definition", _WhenAsked())

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        super().on_bound(app)
        app.steps["worker"].update({CheckAtStart, EndRevoked, Sweeper, WatchChildren})
        app.steps["consumer"].add(BuryUndecodable)
        if "lock_definition" not in cls.__dict__:
            cls.lock_definition = cls.define_lock()
            if "__header__" in cls.__dict__:
                cls.__header__ = staticmethod(cls.lock_definition.argument_checker())

    @classmethod
    def define_lock(cls) -> Definition:
        first = next(c for c in cls.__mro__ if "__call__" in c.__dict__)
        if first is not LockedTask:
            raise ConfigurationError(
                f"task {cls.name}: {first.__name__}.__call__ comes before LockedTask's and would "
                "run the body without its lock; put LockedTask first among the base classes"
            )
        names = [name for c in cls.__mro__ if issubclass(c, LockedTask) for name in vars(c)]
        refuse_misspelt(cls.name, filter(_is_meant_for_the_lock, names), LOCK)
        unbound = isinstance(inspect.getattr_static(cls, "run"), staticmethod)
        return Definition.of(
            cls.run,
            bound=not unbound,
            name=cls.name,
            key=cls.lock_key,
            ttl=cls.lock_ttl,
            on_contention=cls.lock_on_contention,
            limit=cls.lock_limit,
            shared=cls.lock_shared,
            max_hold=cls.lock_max_hold,
            parents=cls.lock_parents,
            on_lost=cls.lock_on_lost,
        )

    @property
    def lease(self) -> Lease:
        """The lease of the running body, for ``bind=True`` tasks."""
        return current_lease()

    @property
    def backend(self) -> Any:
        """Celery's result backend of this task."""
        return RetryTold.or_not(super().backend, self.request)

    @backend.setter
    def backend(self, backend: Any) -> None:
        self._backend = backend

    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Override to react when the lock is lost: compensate, alert.

        Called at most once a key, while the body may still be running, in a thread of its own and
        after the abort if there is one; or when the body leaves, where the loss was noticed only
        then. The arguments are the task's.
        """

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        self.lock_definition.refuse_injected(self.name, kwargs or {})
        asks = ordered_here(self)
        if asks is None:
            return super().apply_async(args, kwargs, task_id, producer, *more, **options)
        with self.app.producer_or_acquire(producer) as acquired:
            outbox = Outbox(self, asks, acquired)
            return super().apply_async(args, kwargs, task_id, outbox, *more, **options)

    def apply(self, *args: Any, **options: Any) -> Any:
        return shielded(super().apply, *args, **options)

    def retry(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        exc: BaseException | None = None,
        *more: Any,
        **options: Any,
    ) -> Any:
        if isinstance(exc, LockLost | StaleFencingToken):
            raise exc  # runs again anyway; ``autoretry_for=(Exception,)`` spends no retry on it
        return handing_on(super().retry, args, kwargs, exc, *more, **options)

    def replace(self, *args: Any, **options: Any) -> Any:
        try:
            return handing_on(super().replace, *args, **options)
        except Ignore:  # the other one is published, under the same id; of this one all is done
            execution = vars(self.request).get(EXECUTION)
            if isinstance(execution, Execution):
                execution.final = True
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self.lock_definition.refuse_injected(self.name, kwargs)
        request = self.request
        if request.called_directly or hasattr(request, EXECUTION):
            return self._call_here(args, kwargs)
        if request.is_eager and self._holds(args, kwargs):  # sent by a body
            return self._call_here(args, kwargs)
        execution = Execution.begin(self, args, kwargs)
        taken = take(execution)
        if isinstance(taken, Complete):
            return dict(taken.result)
        try:
            return execution.run(self.lock_body, taken)
        except (LockLost, StaleFencingToken) as exc:
            run_again(execution, exc)

    def _call_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A plain call, without a message: it takes the lock, and fails at once when it cannot."""
        definition = self.lock_definition
        abort = Abort() if definition.aborts else None
        with hold(
            self.app,
            definition.keys(args, kwargs),
            name=self.name,
            mode=definition.mode,
            limit=definition.limit,
            ttl=definition.ttl,
            max_hold=definition.max_hold,
            timeout=0,
            abort=abort,
        ) as lease:
            kwargs = definition.injected(kwargs, lease)
            if abort is None:
                return self.lock_body(*args, **kwargs)
            return abort.run(lease, self.lock_body, *args, **kwargs)

    def _holds(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        store = runtime(self.app).backend
        keys = self.lock_definition.keys(args, kwargs)
        return any(held_term(key, store) for key in keys.all)

    @property
    def lock_body(self) -> Callable[..., Any]:
        """What runs under the lock: ``run``, or the ``__call__`` of a base class of the project's.

        Never that of :class:`celery.Task`, which would push an empty request on top of this one
        (celery/celery#912).
        """
        bases = type(self).__mro__
        after = bases[bases.index(LockedTask) + 1 :]
        owner = next(c for c in after if "__call__" in c.__dict__)
        body: Callable[..., Any] = self.run if owner is Task else super().__call__
        return body


def _is_meant_for_the_lock(name: str) -> bool:
    return name.startswith(LOCK) and name not in vars(LockedTask)


signals.task_prerun.connect(leave_before_the_body)
signals.task_postrun.connect(leave_after_result)
signals.task_unknown.connect(bury_unknown)
signals.task_rejected.connect(bury_rejected)
