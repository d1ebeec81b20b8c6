"""From what a task declares to the claims that its store is asked for."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

from celery.app.task import Context

from celery_dlock.contention import Queueing
from celery_dlock.core.keys import Keys
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Mode, Wait
from celery_dlock.tasks.history import History, identity

logger = logging.getLogger("celery_dlock")


def claims_of(keys: Keys, like: Claim) -> tuple[Claim, ...]:
    """One for each of *keys*, and for each of their parents one that reads.

    How many may wait is said of the task's own keys, and there its message is kept while it runs.
    """
    parent = replace(like, mode=Mode.SHARED, limit=1, max_waiting=0, drop_oldest=False, keep=False)
    return (
        *(replace(like, key=key) for key in keys.own),
        *(replace(parent, key=key) for key in keys.parents),
    )


def queued(claim: Claim, asks: Queueing, wait: Wait) -> Claim:
    """*claim* in the queue of its key, as its policy *asks* for it."""
    return replace(
        claim,
        wait=wait,
        gives_up=int((asks.max_wait or 0) * SECOND),
        max_waiting=asks.max_waiting or 0,
        drop_oldest=asks.drop_oldest,
        keep=asks.keep,
    )


def left_by(task: Any, request: Context, nonce: str = "", done_ttl: int = 0) -> list[Claim]:
    """What the delivery *nonce* of *request* may hold or have a turn at, to be given back.

    At each of its keys, and at the one that it was called for. Without a nonce it holds none.
    """
    who = identity(request)
    called = History.read(request, who).key
    keys = set() if called is None else {called}
    try:
        keys.update(task.lock_definition.keys(request.args, request.kwargs).all)
    except Exception:  # then its body has not begun, either
        logger.debug("the arguments of %s give no key", request.id, exc_info=True)
    return [Claim(key, who, nonce, ttl=0, done_ttl=done_ttl) for key in sorted(keys)]
