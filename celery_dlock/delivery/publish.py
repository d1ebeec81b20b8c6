"""The running task is published once more: the same task later, or its next attempt.

The task id, ``retries``, queue, priority, headers, ``expires``, serializer, links, chain, group
and chord all stay.

The next attempt, for which ``retry()`` is called, is another task to the store. Celery drops its
message where it cannot be published. Here it goes on as everything does that the library publishes
itself.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from celery.exceptions import Reject
from kombu.serialization import registry

from celery_dlock.core.access import Keys
from celery_dlock.core.events import Rescheduled
from celery_dlock.delivery.execution import EXECUTION, Execution
from celery_dlock.delivery.outgoing import Outgoing
from celery_dlock.messages.countdown import seconds_until
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.exchanges import instead_of_all
from celery_dlock.messages.headers import HISTORY, History, identity_as_sent


def publish_again(execution: Execution, countdown: float, history: History, reason: str) -> bool:
    """Publish its message with this *history*, to be delivered in *countdown* seconds.

    Whether the broker has it; else the lock store has, which needs no countdown.
    """
    task, request = execution.task, execution.request
    headers = dict(request.as_execution_options()["headers"] or {})
    carried = execution.runtime.sinks.carry(execution.subject)
    history = replace(history, carried=carried, expected=time.time() + countdown)
    options = {
        "headers": {**headers, HISTORY: history.header()},
        "countdown": countdown,
        # Before 5.7 Celery does not carry this over.
        "ignore_result": vars(request).get("ignore_result", task.ignore_result),
    }
    serializer = registry.type_to_name.get(execution.delivery.get("content_type"))
    if serializer is not None:
        options["serializer"] = serializer

    queue = instead_of_all(task.app, (request.delivery_info or {}).get("exchange") or "")

    def publish(producer: Any) -> None:
        again = task.signature_from_request(
            request, queue=queue, retries=request.retries, **options
        )
        again.apply_async(producer=producer)

    message = Outgoing(execution, history, execution.keys, lambda: execution.entry)
    message.send(publish)
    if message.went:
        execution.runtime.sinks.emit(Rescheduled(execution.subject, reason, countdown))
    return message.went


def retrying(task: Any, task_id: str | None, options: Mapping[str, Any]) -> Execution | None:
    """The running delivery of *task*, if it is its next attempt that is to be published."""
    request = task.request
    execution = vars(request).get(EXECUTION)
    if not isinstance(execution, Execution) or request.is_eager or "connection" in options:
        return None
    is_next = task_id == request.id and options.get("retries") == (request.retries or 0) + 1
    return execution if is_next else None


def message_of_next(
    execution: Execution, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]
) -> Outgoing:
    """What is to be published of *execution*'s task with these *options*."""
    who = identity_as_sent(execution.request.id, options)
    carried = execution.runtime.sinks.carry(execution.subject)
    history = History(who, due=_due(execution.task.app, options), carried=carried)
    return Outgoing(
        execution,
        history,
        keys_of_next(execution, args, kwargs),
        partial(_as_it_came, execution, who, args, kwargs, options),
    )


def without_reject(retry: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call Celery's *retry*, which makes of whatever a publish raises a message to be dropped."""
    try:
        return retry(*args, **options)
    except Reject as dropped:
        if isinstance(dropped.reason, Exception):
            raise dropped.reason from dropped.reason.__cause__
        raise


def _due(app: Any, options: Mapping[str, Any]) -> float | None:
    when = options.get("eta") or options.get("countdown")
    return time.time() + seconds_until(app, when) if when else None


def keys_of_next(execution: Execution, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keys:
    """The keys of the next attempt, which may have other arguments."""
    try:
        return execution.task.lock_definition.keys(tuple(args), kwargs)
    except Exception:  # then it fails for that when it comes, and not here
        return execution.keys


def _as_it_came(
    execution: Execution,
    who: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ParkedMessage | None:
    """The message of the delivery, if the next attempt has the same arguments."""
    entry = execution.entry
    mine = (*execution.request.args, *execution.request.kwargs.values())
    theirs = (*args, *kwargs.values())
    same = len(mine) == len(theirs) and all(a is b for a, b in zip(mine, theirs, strict=True))
    if entry is None or not same or set(kwargs) != set(execution.request.kwargs):
        return None
    if "retries" not in entry.headers:  # message protocol 1 has them in its body
        return None
    return replace(entry, task=who, headers={**entry.headers, "retries": options["retries"]})
