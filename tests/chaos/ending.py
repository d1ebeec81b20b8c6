"""The end of a round: everything is worked off, and then nothing may be left."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from celery_dlock import LockContended, lock
from celery_dlock.core.state import KeyState
from tests.chaos.plan import KEYS, Key
from tests.chaos.sender import Sender
from tests.chaos.stage import TTL, Stage

#: Seconds for which nothing happens before what has no message any more is looked at.
STILL = 3.0


def drained(stage: Stage, sender: Sender, since: dict[str, float]) -> bool:
    """Whether there is nothing left to wait for: all is done, or nobody has it any more.

    Redis as a broker may lose a message on its way to a worker: it is popped first and noted as
    not acknowledged after that. What no worker has ever received is sent again, as a publisher
    with an outbox would. *since* keeps when it became still.
    """
    if stage.messages() or any(_waits(stage.backend.peek(key.name)) for key in KEYS):
        since.clear()
        return False
    missing = {sent.id for sent in sender.sent} - {e.task for e in stage.resource.effects()}
    if not missing:
        return True
    if time.monotonic() - since.setdefault("still", time.monotonic()) < STILL:
        return False
    never_received = missing - stage.received()
    sender.send_lost(never_received)
    since.clear()
    return not never_received


def left(stage: Stage) -> Iterator[str]:
    """What lies in the broker and in the store."""
    messages = stage.messages()
    if messages:
        yield f"{messages} messages in the broker"
    for key in KEYS:
        state = stage.backend.peek(key.name)
        if _waits(state):
            turns = [grant.task for grant in state.grants if grant.parked]
            yield f"{state.parked} wait for {key.name}, called are {turns}"


def locked(stage: Stage) -> list[str]:
    """The keys that nobody can take although every lease must have ended by now."""

    def refusal(key: Key) -> str | None:
        try:
            with lock(key.name, app=stage.app, limit=key.limit, timeout=2 * TTL):
                return None
        except LockContended as exc:
            return str(exc)

    with ThreadPoolExecutor(len(KEYS)) as together:
        return [said for said in together.map(refusal, KEYS) if said is not None]


def _waits(state: KeyState) -> bool:
    return state.parked > 0 or any(grant.parked for grant in state.grants)
