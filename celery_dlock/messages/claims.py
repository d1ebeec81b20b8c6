"""A delivery's claims: what it asks its store for, what it may hold, how that is released.

After a failure its message decides how. One that Celery acknowledges is gone, and the task is done.
One that it rejects, for ``acks_late`` without ``acks_on_failure``, comes again from a dead-letter
queue or a redrive, under the same id: it is to run then, and is no duplicate of what is done.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from celery.app.task import Context

from celery_dlock.core.access import Access, Keys
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome, WaitMode
from celery_dlock.messages.headers import History, identity, kept_by_step
from celery_dlock.policies.base import Queueing, queueing

logger = logging.getLogger("celery_dlock")


def claims_of(keys: Keys, terms: Mapping[str, Any]) -> tuple[Claim, ...]:
    """One on these *terms* for each of *keys*, and for each of their parents one that reads.

    *terms* are the fields of a claim that say nothing of its key. How many may wait is said of the
    task's own keys, and there its message is kept while it runs.
    """
    own = [Claim(key, **how_held(access), **terms) for key, access in keys.access.items()]
    if terms.get("shuts"):
        own = [replace(claim, shuts=claim.key == keys.first) for claim in own]
    if not keys.reads:
        return tuple(own)
    terms = {**terms, "max_waiting": 0, "drop_oldest": False, "keep": False, "shuts": False}
    return (*own, *(Claim(key, **how_held(access), **terms) for key, access in keys.reads.items()))


def how_held(access: Access) -> dict[str, Any]:
    """The fields of a claim that say how its key is held."""
    how: dict[str, Any] = {"mode": access.mode, "limit": access.limit}
    if access.cooldown:
        how["cooldown"] = int(access.cooldown * SECOND)
    return how | {"entry": access.entry, "keyset": access.keyset}


def queued(
    demands: Queueing, wait: WaitMode, *, first: bool, begun: bool = False
) -> dict[str, Any]:
    """The terms of a claim in the queue of its key, as its policy asks for it.

    Its task replaces the one that runs only if it comes for the *first* time. One that comes again
    may be older than that. No queue is too full for one that has *begun*, unless a newer one takes
    its place there.
    """
    any_number = demands.max_waiting is None or (begun and not demands.drop_oldest)
    return {
        "wait": wait,
        "gives_up": int((demands.max_wait or 0) * SECOND),
        "max_waiting": 0 if any_number else demands.max_waiting,
        "drop_oldest": demands.drop_oldest,
        "keep": demands.keep,
        "ordered": demands.ordered,
        "shuts": demands.shuts,
        "gives_way": demands.replaces_running,
        "supersedes": demands.replaces_running and first,
    }


def enqueued(access: Access, demands: Queueing, key: str, attempt: str, name: str) -> Claim:
    """The claim of a message whose turn is asked for, and not the key: nobody is there to run."""
    terms = how_held(access) | queued(demands, WaitMode.ENQUEUE, first=True)
    return Claim(key, attempt, nonce="", ttl=0, name=name, **terms)


def has_keys_kept(task: Any, headers: Mapping[str, Any]) -> bool:
    """Whether keys may be kept for what has these *headers*: a retry, or the next of a chain."""
    is_retry = bool(task.lock_definition.reserve and headers.get("retries"))
    return is_retry or bool(kept_by_step(headers))


def reserved_for(task: Any, headers: Mapping[str, Any], keys: Keys) -> tuple[str, ...]:
    """Those of its *keys* that are: a retry is kept all of its own ones."""
    if not has_keys_kept(task, headers):
        return ()
    kept = kept_by_step(headers)
    return tuple(key for key in keys.own if not kept or key in kept)


def left_by(task: Any, request: Context, nonce: str = "", done_ttl: int = 0) -> list[Claim]:
    """What the delivery *nonce* of *request* may hold or have a turn at, to be released.

    At each of its keys, and at the one that it was woken for. Without a nonce it holds none.
    """
    attempt = identity(request)
    woken_at = History.read(request, attempt).key
    keys, first = set() if woken_at is None else {woken_at}, woken_at
    try:
        own = task.lock_definition.keys(request.args, request.kwargs)
    except Exception:  # then its body has not begun, either
        logger.debug("the arguments of %s give no key", request.id, exc_info=True)
    else:
        keys.update(own.all)
        first = own.first
    claims = [Claim(key, attempt, nonce, ttl=0, done_ttl=done_ttl) for key in sorted(keys)]
    if not shuts_if_failed(task):
        return claims
    return [replace(c, shuts=True, name=task.name) if c.key == first else c for c in claims]


def shuts_if_failed(task: Any) -> bool:
    """Whether a key is put on hold when *task*, which may have no lock any more, fails for good."""
    definition = getattr(task, "lock_definition", None)
    demands = None if definition is None else queueing(definition.policy)
    return demands is not None and demands.shuts


def lets_go(task: Any) -> bool:
    """Whether Celery acknowledges the message of *task* when its body fails."""
    if not task.acks_late:
        return True
    flag = getattr(task, "acks_on_failure", None)  # Celery 5.5 has one name for it and timeouts
    return bool(task.acks_on_failure_or_timeout if flag is None else flag)


def failed(task: Any, *, let_go: bool, duplicate_may_wait: bool = False) -> Outcome:
    """The outcome of a failure of *task* whose message the broker *let_go*, or did not.

    Where a duplicate may wait behind the run, its acknowledgement has perhaps removed what the
    broker was to keep: then the duplicate stays.
    """
    if let_go:
        return Outcome.FAILED if shuts_if_failed(task) else Outcome.DONE
    return Outcome.UNUSED if duplicate_may_wait else Outcome.OVER
