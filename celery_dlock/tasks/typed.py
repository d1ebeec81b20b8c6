"""What type checkers see of a task: on every way to call it, it takes what its body takes.

Nothing of this has an effect when a program runs. A checker cannot take a keyword-only parameter
out of a signature (PEP 612), so what the library passes to a body has the default
:data:`~celery_dlock.INJECTED` there, and callers leave it out. A body without that default is
called with anything, where the checker can tell
(``docs/decisions/0041-what-is-passed-in-has-a-default.rst``).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, Concatenate, Protocol, TypedDict, overload

from celery import Task

from celery_dlock.core.lease import Lease
from celery_dlock.locks.definition import LockOptions

if TYPE_CHECKING:
    from typing import Generic

    from celery.canvas import Signature
    from celery.result import AsyncResult
    from typing_extensions import ParamSpec, TypeVar

    P = ParamSpec("P", default=...)
    R_co = TypeVar("R_co", covariant=True, default=Any)

    class TaskResult(AsyncResult[R_co], Generic[R_co]):  # type: ignore[misc]
        """What a call of a locked task returns: Celery's result."""

        #: Whether it is that of another call, which this one was a duplicate of.
        is_duplicate: bool

    class TypedTask(Task[P, R_co], Generic[P, R_co]):  # type: ignore[misc]
        """A task whose body takes *P* and returns *R_co*."""

        def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
        def delay(self, *args: P.args, **kwargs: P.kwargs) -> TaskResult[R_co]: ...

        # Where an application is Django's:
        def delay_on_commit(self, *args: P.args, **kwargs: P.kwargs) -> None: ...
        def apply_async_on_commit(self, *args: Any, **kwargs: Any) -> None: ...
        def si(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]: ...
        @overload
        def s(self, *args: P.args, **kwargs: P.kwargs) -> Signature[R_co]: ...
        @overload  # in a chain the first argument is the result of the task before
        def s(
            self: TypedTask[Concatenate[Any, Rest], R_co], *args: Rest.args, **kwargs: Rest.kwargs
        ) -> Signature[R_co]: ...
        def s(self, *args: Any, **kwargs: Any) -> Signature[R_co]: ...
else:
    from typing import ParamSpec, TypeVar

    P, R_co = ParamSpec("P"), TypeVar("R_co", covariant=True)

    class TypedTask(Task):
        """Celery's own tasks take no subscript in every version that is supported."""

        abstract = True

        def __class_getitem__(cls, _):
            return cls


class CeleryOptions(TypedDict, total=False):
    """Celery's own options of a task, which ``@locked_task`` hands on.

    Celery takes any other name for an attribute of the task. To a checker that is an error, as it
    may be misspelt: names of the project's own are attributes of the class that is its ``base``.
    """

    name: str | None
    base: type[Any] | None
    lazy: bool
    filter: Callable[..., Any] | None
    typing: bool | None
    pydantic: bool
    pydantic_strict: bool
    pydantic_context: dict[str, Any] | None
    pydantic_dump_kwargs: dict[str, Any] | None

    max_retries: int | None
    default_retry_delay: float
    autoretry_for: Sequence[type[BaseException]]
    dont_autoretry_for: Sequence[type[BaseException]]
    retry_kwargs: dict[str, Any]
    retry_backoff: bool | float
    retry_backoff_max: int
    retry_jitter: bool

    acks_late: bool | None
    acks_on_failure_or_timeout: bool | None
    acks_on_failure: bool | None
    acks_on_timeout: bool | None
    reject_on_worker_lost: bool | None
    retry_on_worker_lost: bool | None
    rate_limit: str | float | None
    time_limit: float | None
    soft_time_limit: float | None
    throws: tuple[type[BaseException], ...]

    backend: Any
    ignore_result: bool | None
    store_eager_result: bool | None
    store_errors_even_if_ignored: bool | None
    track_started: bool | None
    trail: bool
    resultrepr_maxsize: int
    send_events: bool

    serializer: str | None
    compression: str | None
    queue: str | None
    exchange: Any
    routing_key: str | None
    delivery_mode: int | str | None
    priority: int | None
    expires: float | datetime | None

    Request: type[Any] | str
    shadow_name: Callable[..., Any]
    before_start: Callable[..., Any]
    after_return: Callable[..., Any]
    on_success: Callable[..., Any]
    on_failure: Callable[..., Any]
    on_retry: Callable[..., Any]
    on_replace: Callable[..., Any]


class TaskOptions(LockOptions, CeleryOptions, total=False):
    """The options of ``@locked_task``."""


Rest = ParamSpec("Rest")
Result_co = TypeVar("Result_co", covariant=True)


class GivenToken(Protocol[Rest, Result_co]):
    """A body that takes *Rest*, and of that a fencing token which may be left out."""

    @overload
    def __call__(self, *args: Rest.args, **kwargs: Rest.kwargs) -> Result_co: ...
    @overload
    def __call__(self, *args: Any, fencing_token: int = ..., **kwargs: Any) -> Any: ...


class GivenLease(Protocol[Rest, Result_co]):
    """A body that takes *Rest*, and of that a lease which may be left out."""

    @overload
    def __call__(self, *args: Rest.args, **kwargs: Rest.kwargs) -> Result_co: ...
    @overload
    def __call__(self, *args: Any, lease: Lease = ..., **kwargs: Any) -> Any: ...


class AsksForToken(Protocol[Result_co]):
    """A body that has to be given a fencing token."""

    def __call__(self, *args: Any, fencing_token: int, **kwargs: Any) -> Result_co: ...


class AsksForLease(Protocol[Result_co]):
    """A body that has to be given a lease."""

    def __call__(self, *args: Any, lease: Lease, **kwargs: Any) -> Result_co: ...
