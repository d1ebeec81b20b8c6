"""The end of a round: everything is worked off, and then nothing may be left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from celery_dlock import BackendUnavailable, LockContended, lock
from celery_dlock.core.state import KeyState
from tests.chaos.plan import KEYS, Key
from tests.chaos.sender import Sender
from tests.chaos.stage import TTL, Stage

#: Seconds for which nothing happens before what has no message any more is looked at.
STILL = 3.0


def drained(stage: Stage, sender: Sender, since: dict[str, float]) -> bool:
    """Whether there is nothing left to wait for: all is done, or nobody has it any more.

    What the broker has lost is sent again. *since* keeps when it became still.
    """
    if stage.messages() or any(_waits(stage.backend.peek(key.name)) for key in KEYS):
        since.clear()
        return False
    missing = {sent.id for sent in sender.sent} - {e.task for e in stage.resource.effects()}
    if not missing:
        return True
    if not stage.broker.loses:
        return False  # a worker has it, unseen: until its countdown is over, say
    if time.monotonic() - since.setdefault("still", time.monotonic()) < STILL:
        return False
    lost = lost_by_broker(stage, sender) & missing
    sender.send_lost(lost)
    since.clear()
    return not lost


def lost_by_broker(stage: Stage, sender: Sender) -> set[str]:
    """The tasks of which more messages were published than workers have ever received.

    The sender publishes, and so do the library, which notes it, and a body that retries.
    """
    received, published = stage.logged("received"), stage.logged("published")
    retried = stage.logged(r"retry: Retry in [\d.]+s$")  # of the body; ours names its reason
    return {
        sent.id
        for sent in sender.sent
        if received[sent.id] < sent.times + published[sent.id] + retried[sent.id]
    }


def left(stage: Stage) -> Iterator[str]:
    """What lies in the broker and in the store."""
    messages = stage.messages()
    if messages:
        yield f"{messages} messages in the broker"
    for key in KEYS:
        state = stage.backend.peek(key.name)
        if _waits(state):
            turns = [grant.task for grant in state.grants if grant.parked]
            yield f"{state.parked} wait for {key.name}, woken are {turns}"


def locked(stage: Stage) -> list[str]:
    """The keys that nobody can take although every lease must have ended by now."""

    def refusal(key: Key, tries: int = 3) -> str | None:
        try:
            with lock(key.name, app=stage.app, limit=key.limit, timeout=2 * TTL):
                return None
        except BackendUnavailable:  # the connection of this very process may be lost, too
            if tries == 1:
                raise
            return refusal(key, tries - 1)
        except LockContended as exc:
            return str(exc)

    with ThreadPoolExecutor(len(KEYS)) as together:
        return [said for said in together.map(refusal, KEYS) if said is not None]


def _waits(state: KeyState) -> bool:
    return state.parked > 0 or any(grant.parked for grant in state.grants)
