"""A Celery task that takes its lock before the body runs."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from importlib import import_module
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    NoReturn,
    cast,
)
from weakref import WeakSet

from celery import Celery, Task, signals
from celery.exceptions import Ignore
from celery.utils.threads import LocalStack

from celery_dlock.core.access import LimitUnknown
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Outcome
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    LockContended,
    LockLost,
    StaleFencingToken,
)
from celery_dlock.locks.current import current_lease, held_term
from celery_dlock.locks.definition import OPTIONS, Definition
from celery_dlock.locks.foreign import refuse_foreign
from celery_dlock.messages.headers import EXECUTION, RETRY_STORED, step_of
from celery_dlock.publishing.call import Call, marked
from celery_dlock.runtime import runtime
from celery_dlock.tasks.errbacks import called_by_celery, send
from celery_dlock.tasks.mistakes import (
    CALL_EACH,
    LOCK,
    given_to_celery,
    refuse_coroutine,
    refuse_each,
    refuse_misspelt_attribute,
    refuse_strategy,
    refuse_without_prefix,
)
from celery_dlock.tasks.typed import (
    P,
    R_co,
    TypedTask,
)

if TYPE_CHECKING:
    from celery.result import EagerResult

    from celery_dlock.delivery.execution import Execution
    from celery_dlock.tasks.typed import TaskResult

logger = logging.getLogger("celery_dlock")

#: Methods that Celery gives to the tasks of a Django project. A shared task is defined without an
#: application, and gets them from the one that it is bound to.
ON_COMMIT = ("delay_on_commit", "apply_async_on_commit")

TOO_LATE = (
    "%s has a lock, and this application's worker has started without dlock_url: that worker takes "
    "no woken messages and does not sweep. Set dlock_url before the worker starts"
)

#: What a worker's main process needs, by name: a process that only publishes loads none of it.
STRATEGY = "celery_dlock.worker.request:strategy"
BEFORE_FORKS = (
    STRATEGY.partition(":")[0],
    "celery_dlock.delivery.taking",
    "celery_dlock.delivery.leaving",
    "celery_dlock.tasks.block",
)
WORKER_STEPS = (
    "celery_dlock.worker.children:WatchChildren",
    "celery_dlock.worker.periodic:EndRevoked",
    "celery_dlock.worker.periodic:Sweeper",
    "celery_dlock.worker.startup:CheckAtStart",
    "celery_dlock.worker.woken:StartByTurns",
)
CONSUMER_STEPS = (
    "celery_dlock.worker.request:DeadLetterUndecodable",
    "celery_dlock.worker.woken:ConsumeWoken",
    "celery_dlock.worker.parking:ParkWithoutSlot",
)


class _DefinedOnAccess:
    """The definition of a task that Celery shows to other threads before it has bound it."""

    def __get__(self, task: object, owner: type[LockedTask]) -> Definition:
        return owner.define_lock()


class LockedTask(TypedTask[P, R_co]):
    """Base class of tasks that run under a lock: ``@app.task(base=LockedTask, lock_key=…)``.

    The options are those of :func:`~celery_dlock.locked_task` with the prefix ``lock_``. A wrong
    one raises :exc:`~celery_dlock.ConfigurationError` when Celery finalizes the task. A class that
    also inherits from another task class must name this one first. A ``Request`` class of your own
    is used together with the library's; a ``Strategy`` of your own is refused.
    """

    abstract = True
    Strategy = STRATEGY
    #: Empty, until Celery has bound the task and given it its own: other threads publish it before.
    request_stack = LocalStack()

    lock_definition: ClassVar[Definition] = cast("Definition", _DefinedOnAccess())

    @classmethod
    def on_bound(cls, app: Celery) -> None:
        super().on_bound(app)
        if app in _workers_without_steps:
            logger.warning(TOO_LATE, cls.name)
        _add_steps(app)
        for name in ON_COMMIT:
            if not hasattr(cls, name) and (method := getattr(app.Task, name, None)):
                setattr(cls, name, method)
        if "lock_definition" not in cls.__dict__:
            cls.lock_definition = cls.define_lock()
            if "__header__" in cls.__dict__:
                checker = cls.lock_definition.argument_checker(cls.name)
                # A partial tells Celery to send the task as an error callback: it is bound.
                is_bound = isinstance(cls.__header__, partial)
                cls.__header__ = staticmethod(partial(checker) if is_bound else checker)

    @classmethod
    def define_lock(cls) -> Definition:
        caller = next(c for c in cls.__mro__ if "__call__" in c.__dict__)
        if caller is not LockedTask:
            raise ConfigurationError(
                f"task {cls.name}: {caller.__name__}.__call__ comes before LockedTask's and would "
                "run the body without its lock; put LockedTask first among the base classes"
            )
        refuse_strategy(cls.name, cls, LockedTask)
        if cls.body_owner() is Task:
            refuse_coroutine(cls.name, cls.run)
        refuse_misspelt_attribute(cls, cls.name, LockedTask)
        refuse_without_prefix(cls, cls.name)
        packages = {c.__module__.partition(".")[0].replace("_", "-") for c in cls.__mro__}
        refuse_foreign(f"task {cls.name}", given_to_celery(cls), LOCK, packages)
        return Definition.of(
            cls.run,
            bound=not isinstance(inspect.getattr_static(cls, "run"), staticmethod),
            name=cls.name,
            dump=getattr(cls, "_dump_pydantic_arguments", None),
            **{o: getattr(cls, LOCK + o) for o in OPTIONS if hasattr(cls, LOCK + o)},
        )

    @property
    def lease(self) -> Lease:
        """The lease of the running body, for ``bind=True`` tasks."""
        return current_lease()

    @property
    def backend(self) -> Any:
        """Celery's result backend of this task."""
        backend, request = super().backend, self.request_stack.top
        if request is None or RETRY_STORED not in vars(request):
            return backend
        from celery_dlock.delivery.result_state import RetryStored

        return RetryStored(backend)

    @backend.setter
    def backend(self, backend: Any) -> None:
        self._backend = backend

    def on_lock_lost(
        self, lease: Lease, task_id: str, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        """Override to react when the lock is lost: compensate, alert.

        It is called at most once for each key, in a thread of its own, while the body may still
        run; with an abort, after that. If the loss is noticed only when the body ends, it is called
        then. The arguments are those of the task.
        """
        # The class that an application gives to its tasks may react for all of them.
        of_application = getattr(super(), "on_lock_lost", None)
        if of_application is not None:
            of_application(lease, task_id, args, kwargs)

    def apply_async(
        self,
        args: Sequence[Any] | None = None,
        kwargs: Mapping[str, Any] | None = None,
        task_id: str | None = None,
        producer: Any = None,
        link: Any = None,
        link_error: Any = None,
        shadow: str | None = None,
        **options: Any,
    ) -> TaskResult[R_co]:
        self.lock_definition.refuse_injected(self.name, kwargs or {})
        # By their names: the method of a project's own base class may have only two parameters.
        named = {"link": link, "link_error": link_error, "shadow": shadow}
        options |= {name: value for name, value in named.items() if value is not None}
        publish = partial(super().apply_async, args, kwargs)
        if not producer and EXECUTION in vars(self.request):
            from celery_dlock.delivery.publish import publish_next, retrying

            execution = retrying(self, task_id, options)
            if execution is not None:
                publish_next(execution, publish, args or (), kwargs or {}, options)
                return cast("TaskResult[R_co]", marked(self.AsyncResult(task_id), duplicate=False))
        before = self._ended_before()
        step = step_of(task_id, options, before.request.id if before else None)
        if step and (task_id is None or task_id != self.request.id):
            options["headers"] = {**(options.get("headers") or {}), **step}
        call = Call(self, publish, producer, task_id, options)
        sent = self.lock_definition.sent(args or (), kwargs or {})
        if before is None:
            return cast("TaskResult[R_co]", call.publish(*sent))
        from celery_dlock.delivery.chain import publish_after

        return cast("TaskResult[R_co]", publish_after(before, call, *sent))

    def _ended_before(self) -> Execution | None:
        """The delivery of this thread whose body has ended, and which has not ended itself."""
        task = self.app.current_worker_task
        execution = None if task is None else _execution(task.request)
        return execution if execution is not None and execution.body_ended else None

    def apply(self, *args: Any, **options: Any) -> EagerResult[R_co]:
        from celery_dlock.delivery.abort import shielded

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
            raise exc  # it runs again anyway; ``autoretry_for=(Exception,)`` spends no retry
        from celery_dlock.delivery.abort import handing_on
        from celery_dlock.delivery.publish import without_reject

        execution = _execution(self.request)
        lease = None if execution is None else execution.hold.lease
        if lease is not None and lease.replaced is not None:
            lease.check()  # raises: another attempt would replace the newer task
        return handing_on(without_reject, super().retry, args, kwargs, exc, *more, **options)

    def signature_from_request(self, *args: Any, **options: Any) -> Any:
        from celery_dlock.messages.way_back import lead_back

        signature = super().signature_from_request(*args, **options)
        lead_back(self.app, signature.options)
        return signature

    def replace(self, *args: Any, **options: Any) -> Any:
        from celery_dlock.delivery.abort import handing_on

        try:
            return handing_on(super().replace, *args, **options)
        except Ignore:  # its replacement is published under the same id, so this task is final
            execution = _execution(self.request)
            if execution is not None:
                execution.final = True
            raise

    def chunks(self, it: object, n: int = 1) -> NoReturn:
        """Not for a task with a lock."""
        refuse_each(self.name)

    map = starmap = chunks

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        __tracebackhide__ = True
        return cast("R_co", self._call(args, kwargs))

    def _call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.lock_definition.refuse_injected(self.name, kwargs)
        request = self.request
        __tracebackhide__ = True
        if request.called_directly or hasattr(request, EXECUTION):
            return self._call_here(args, kwargs)
        if request.is_eager and self._holds(args, kwargs):  # sent by a body
            return self._call_here(args, kwargs)
        from celery_dlock.delivery.taking import deliver

        return deliver(self, request, args, kwargs)

    def _call_here(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A direct call, without a message: it takes the lock, or fails at once.

        An error callback that does not get the lock is sent as a message.
        """
        from celery_dlock.delivery.abort import Abort
        from celery_dlock.tasks.acquisition import Acquisition
        from celery_dlock.tasks.block import locked_block

        caller = self.app.current_worker_task
        if caller is not None and caller.name in CALL_EACH:
            refuse_each(self.name)
        definition = self.lock_definition
        abort = Abort() if definition.aborts else None
        keys = definition.keys(args, kwargs)
        with ExitStack() as stack:
            try:
                begin = partial(
                    Acquisition.begin,
                    self.app,
                    definition.limited(keys, args, kwargs),
                    name=self.name,
                    ttl=definition.ttl,
                    timeout=0,
                    strike=None if abort is None else abort.strike,
                )
                lease = stack.enter_context(locked_block(begin))
            except (LockContended, LockLost, BackendUnavailable, LimitUnknown):
                callback = called_by_celery(self)
                if callback is None:
                    raise
                return send(self, *callback, args, kwargs)
            kwargs = definition.injected(kwargs, lease)
            __tracebackhide__ = True
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
        body: Callable[..., Any] = self.run if self.body_owner() is Task else super().__call__
        return body

    @classmethod
    def body_owner(cls) -> type:
        """The class behind ``LockedTask`` whose ``__call__`` runs the body."""
        classes = cls.__mro__[cls.__mro__.index(LockedTask) + 1 :]
        return next(c for c in classes if "__call__" in vars(c))


def _execution(request: Any) -> Execution | None:
    """The execution of the delivery of *request*, if it is one of a locked task."""
    execution = vars(request).get(EXECUTION)
    if execution is None:
        return None
    from celery_dlock.delivery.execution import Execution

    return execution if isinstance(execution, Execution) else None


@signals.task_prerun.connect  # type: ignore[untyped-decorator]
def leave_before_the_body(task: Any = None, **_: Any) -> None:
    """Release the turn of a task that has no lock in this version, and was woken in another."""
    if not hasattr(task, "lock_definition"):
        from celery_dlock.delivery.leaving import leave_turn

        leave_turn(task, Outcome.OVER)


@signals.task_postrun.connect  # type: ignore[untyped-decorator]
def leave_after_result(**about: Any) -> None:
    """The result is stored and the callbacks are published: now the lock may go."""
    from celery_dlock.delivery.leaving import leave

    leave(**about)


#: Applications whose worker in this process started without the library's steps.
_workers_without_steps: WeakSet[Celery] = WeakSet()


def _add_steps(app: Celery) -> None:
    app.steps["worker"].update(WORKER_STEPS)
    app.steps["consumer"].update(CONSUMER_STEPS)


@signals.worker_init.connect  # type: ignore[untyped-decorator]
def prepare_worker(sender: Any, **_: Any) -> None:
    """Adds the library's steps to a worker that has a lock store, before they are first needed.

    A task may get its lock after the worker has started. One that had a lock before may still have
    a message on its way.
    """
    for module in BEFORE_FORKS:
        import_module(module)
    if sender.app.conf.get("dlock_url") is not None:
        _add_steps(sender.app)
    elif sender.app.steps["consumer"].isdisjoint(CONSUMER_STEPS):
        _workers_without_steps.add(sender.app)
