"""Error callbacks whose key is taken: they are sent as messages, and wait under their own policy.

Celery calls an error callback that takes ``(request, exc, traceback)`` as a plain function, in the
process of the failed task. It cannot wait there: the failed task still holds its own key.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, cast

from celery import Signature, current_app
from celery.app.task import Context
from celery.backends.base import Backend
from celery.utils.serialization import get_pickleable_exception
from kombu.utils import json as kombu_json

from celery_dlock.messages.headers import EXECUTION

#: Serializers that can carry the arguments.
_SERIALIZERS = frozenset({"json", "pickle", "auth"})


class FailedRequest(Context):  # type: ignore[misc]
    """The request of a failed task, with the fields that a message can carry."""


class _Error:
    """The type that is registered with kombu for exceptions: each has a ``__json__`` of its own."""


def _decode_error(value: Mapping[str, Any]) -> Any:
    error: BaseException = current_app.backend.exception_to_python(value)
    return _sendable(error, value)


def _sendable(error: BaseException, value: Mapping[str, Any]) -> BaseException:
    """*error*, which a retry of the callback can send again as *value*."""
    encoded = {"__type__": "celery_dlock.error", "__value__": value}
    error.__json__ = partial(dict, encoded)  # type: ignore[attr-defined]
    return error


kombu_json.register_type(FailedRequest, "celery_dlock.request", vars, cast("Any", FailedRequest))
kombu_json.register_type(_Error, "celery_dlock.error", vars, _decode_error)


def called_by_celery(task: Any) -> tuple[Signature, Context] | None:
    """The error callback as which Celery calls *task* now, and the request that failed.

    ``None`` in eager mode, too, where nothing is sent. Celery does not tell the task. So this looks
    in the stack for the nearest call of a signature: it has to be of this task, and made where
    Celery calls the error callbacks.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code is not Signature.__call__.__code__:
        frame = frame.f_back
    if frame is None:
        return None
    signature, caller = frame.f_locals["self"], frame.f_back
    calls = Backend._call_task_errbacks.__code__  # noqa: SLF001
    if caller is None or caller.f_code is not calls or signature.task != task.name:
        return None
    failed = caller.f_locals["request"]
    return None if failed.is_eager or task.app.conf.task_always_eager else (signature, failed)


def send(
    task: Any,
    callback: Signature,
    failed: Context,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> Any:
    """Publish *task* with the *args* and *kwargs* that Celery calls it with, as *callback* says."""
    options = {name: value for name, value in callback.options.items() if name != "task_id"}
    serializer = options.get("serializer") or task.serializer
    options["serializer"] = serializer if serializer in _SERIALIZERS else "json"
    portable = partial(_portable, pickles=options["serializer"] == "pickle")
    return task.apply_async(
        [*map(portable, args)],
        {name: portable(value) for name, value in kwargs.items()},
        **{**options, "parent_id": failed.id, "root_id": failed.root_id or failed.id},
    )


def _portable(value: object, *, pickles: bool) -> object:
    """*value* as a message can carry it."""
    if isinstance(value, Context):
        fields = {name: field for name, field in vars(value).items() if name != EXECUTION}
        return FailedRequest({n: v for n, v in fields.items() if pickles or _is_json(v)})
    if isinstance(value, BaseException):
        error = get_pickleable_exception(value)
        return _sendable(error, current_app.backend.prepare_exception(error, serializer="json"))
    return value


def _is_json(value: object) -> bool:
    try:
        kombu_json.dumps(value)  # type: ignore[no-untyped-call]
    except (TypeError, ValueError):
        return False
    return True
