"""The running task is published once more: the same task later, or its next attempt.

The task id, ``retries``, queue, priority, headers, ``expires``, serializer, links, chain, group
and chord all stay.

The next attempt, for which ``retry()`` is called, is another task to the store. Celery drops its
message where it cannot be published. Here it is kept like every message that the library publishes
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
from celery_dlock.delivery.execution import Execution
from celery_dlock.delivery.outgoing import Outgoing
from celery_dlock.messages.countdown import seconds_until
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.messages.headers import EXECUTION, HISTORY, History, identity_as_sent
from celery_dlock.messages.way_back import instead_of_all


def publish_again(execution: Execution, countdown: float, history: History, reason: str) -> None:
    """Publish its message with this *history*, to be delivered in *countdown* seconds.

    If the broker does not take it the lock store has it, which needs no countdown.
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
    group = (execution.delivery.get("properties") or {}).get("MessageGroupId")
    if group is not None:  # of Amazon SQS, which Celery drops
        options["MessageGroupId"] = group

    queue = instead_of_all(task.app, (request.delivery_info or {}).get("exchange") or "")

    def publish(producer: Any) -> None:
        again = task.signature_from_request(
            request, queue=queue, retries=request.retries, **options
        )
        again.apply_async(producer=producer)

    message = Outgoing(execution, history, execution.keys, lambda: execution.entry)
    message.send(publish)
    if message.published:
        execution.runtime.sinks.emit(Rescheduled(execution.subject, reason, countdown))


def retrying(task: Any, task_id: str | None, options: Mapping[str, Any]) -> Execution | None:
    """The running delivery of *task*, if it is its next attempt that is to be published."""
    request = task.request
    execution = vars(request).get(EXECUTION)
    if not isinstance(execution, Execution) or request.is_eager or "connection" in options:
        return None
    is_next = task_id == request.id and options.get("retries") == (request.retries or 0) + 1
    return execution if is_next else None


def publish_next(
    execution: Execution,
    publish: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> None:
    """Have *publish*, which is Celery's, publish the next attempt of *execution*'s task."""
    task_id = execution.request.id
    task = identity_as_sent(task_id, options)
    carried = execution.runtime.sinks.carry(execution.subject)
    when = options.get("eta") or options.get("countdown")
    left = seconds_until(execution.task.app, when) if when else 0.0
    queueing = execution.queueing
    message = Outgoing(
        execution,
        History(task, carried=carried),
        keys_of_next(execution, args, kwargs),
        partial(_as_it_came, execution, task, args, kwargs, options),
        delay=left,
        at_head=queueing is not None and queueing.at_publish,
    )
    message.send(lambda producer: publish(task_id=task_id, producer=producer, **options))
    execution.next_verdict = message.verdict if message.at_head else None


def without_reject(retry: Callable[..., Any], *args: Any, **options: Any) -> Any:
    """Call Celery's *retry*, which makes of whatever a publish raises a message to be dropped."""
    try:
        return retry(*args, **options)
    except Reject as dropped:
        if isinstance(dropped.reason, Exception):
            raise dropped.reason from dropped.reason.__cause__
        raise


def keys_of_next(execution: Execution, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keys:
    """The keys of the next attempt, which may have other arguments."""
    try:
        return execution.task.lock_definition.keys(tuple(args), kwargs)
    except Exception:  # then it fails for that when it comes, and not here
        return execution.keys


def _as_it_came(
    execution: Execution,
    task: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    options: Mapping[str, Any],
) -> ParkedMessage | None:
    """The message of the delivery as that of *task*, its next attempt, if it has the same
    arguments.
    """
    request, entry = execution.request, execution.entry
    values, own = (*args, *kwargs.values()), (*request.args, *request.kwargs.values())
    is_same = len(values) == len(own) and all(a is b for a, b in zip(values, own, strict=True))
    if entry is None or not is_same or set(kwargs) != set(request.kwargs):
        return None
    if "retries" not in entry.headers:  # message protocol 1 has them in its body
        return None
    return replace(entry, task=task, headers={**entry.headers, "retries": options["retries"]})
