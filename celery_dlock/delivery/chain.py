"""One lock over a chain: the keys of a task are kept for the next step of its chain.

Celery publishes the next step before a task has ended, so the task still holds its keys then. The
message of the step goes to the head of the key in the lock store, where it also survives this
process: the release of the key wakes it, or the end of the lease. The release also names the step
as the successor: its turn comes whoever else stands first, and the other keys are kept for it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Drop, Mode, Park, Reason
from celery_dlock.delivery.execution import Execution
from celery_dlock.locks.manager import Successor
from celery_dlock.locks.other_keys import EXPECTED_FOR, RESERVED_FOR
from celery_dlock.messages.countdown import seconds_until
from celery_dlock.messages.headers import STEP, identity_as_sent
from celery_dlock.publishing.call import Call
from celery_dlock.publishing.outbox import NextStep


def publish_after(
    execution: Execution, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """Publish *call* after the body of *execution*: the next step of its chain, or something else.

    The keys of *execution* are kept for the step, if it asks for one that *execution* holds alone.
    """
    step = _next_step(execution, call, args, kwargs)
    if step is None:
        return call.publish(args, kwargs)
    headers = call.options.get("headers") or {}
    marked = {**headers, STEP: {**headers.get(STEP, {}), "next": list(step.keys)}}
    call = replace(call, options={**call.options, "headers": marked}, next_step=step)
    result = call.publish(args, kwargs)
    if not getattr(result, "is_duplicate", False) and step.verdict != Drop(Reason.DONE):
        execution.successor = _successor(execution, call, step)
    return result


def _next_step(
    execution: Execution, call: Call, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> NextStep | None:
    lease = execution.hold.lease
    is_next = call.task_id is not None and call.task_id == execution.next_id
    if not is_next or lease is None or lease.lost or call.task.app.conf.task_always_eager:
        return None
    try:
        keys = call.task.lock_definition.keys(args, kwargs)
    except Exception:  # its worker says so
        return None
    held = execution.keys.access
    common = [key for key in keys.access if key in held]
    common = [key for key in common if keys.access[key].mode is held[key].mode is not Mode.SHARED]
    alone = (key for key in common if held[key].mode is Mode.EXCLUSIVE)
    first = next(alone, None)
    return None if first is None else NextStep(first, tuple(common))


def _successor(execution: Execution, call: Call, step: NextStep) -> Successor:
    """For whom the keys are kept, and how long.

    A message in the store is certain of its turn at its key. It may come late to the others.
    """
    app, when = execution.task.app, call.options.get("eta") or call.options.get("countdown")
    patience = EXPECTED_FOR + int((seconds_until(app, when) if when else 0.0) * SECOND)
    is_parked = step.verdict in (Park(), Drop(Reason.WAITING))
    keys = dict.fromkeys(step.keys, RESERVED_FOR if is_parked else patience)
    return Successor(
        identity_as_sent(call.task_id or "", call.options), keys | {step.key: patience}
    )
