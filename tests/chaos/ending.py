"""The end of a round: everything is worked off, and then nothing may be left."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Collection, Iterator
from concurrent.futures import ThreadPoolExecutor

from celery_dlock import BackendUnavailable, Limit, LockContended, lock
from celery_dlock.core.state import KeyState
from tests.chaos.brokers import VISIBILITY
from tests.chaos.sender import Sender
from tests.chaos.stage import Stage
from tests.chaos.ways import LIMITS
from tests.services.brokers import lying_in

#: Seconds for which nothing happens before what has no message any more is looked at: by then the
#: broker has delivered again whatever it had delivered to a process that has died.
STILL = VISIBILITY + 3.0


def drained(stage: Stage, sender: Sender, since: dict[str, float]) -> bool:
    """Whether there is nothing left to wait for: all is done, or nobody has it any more.

    What the broker has lost is sent again; so it has, too, what a process received that died before
    it said more, and what was not delivered again. *since* keeps when it became still.
    """
    if sender.waits or stage.messages() or any(_waiting(stage)):
        since.clear()
        return False
    done = {effect.task for effect in stage.resource.effects()}
    missing = {sent.id for sent in sender.sent} - done
    missing = {task for task in missing if stage.end(task) is None}
    if not missing:
        return True
    if not stage.broker.loses:
        return False  # a worker has it, unseen: until its countdown is over, say
    if time.monotonic() - since.setdefault("still", time.monotonic()) < STILL:
        return False
    lost = lost_by_broker(stage, sender, done) & missing
    lost |= {task for task in missing if stage.last_word(task).endswith(" received")}
    sender.send_lost(lost)
    since.clear()
    return not lost


def lost_by_broker(stage: Stage, sender: Sender, done: set[str]) -> set[str]:
    """The tasks of which more messages were published than workers have ever received.

    The sender publishes, and so do the library, which notes it, a body that retries, and a worker
    the task that follows one that is *done*.
    """
    received, published = stage.logged("received"), stage.logged("published")
    retried = stage.logged(r"retry: Retry in [\d.]+s$")  # of the body; ours names its reason
    times: Counter[str] = Counter()
    for sent in sender.sent:
        times[sent.id] += sent.times + (sent.follows is not None and sent.follows.id in done)
    return {
        sent.id
        for sent in sender.sent
        if received[sent.id] < times[sent.id] + published[sent.id] + retried[sent.id]
    }


def left(stage: Stage) -> Iterator[str]:
    """What lies in the broker and in the store, as no worker runs any more; it is taken.

    A copy of a task that has ended may have come to a worker that was shutting down, and gone back.
    """
    lying = stage.messages()
    lying -= sum(stage.end(headers["id"]) is not None for _, headers in lying_in(stage.app))
    if lying:
        yield f"{lying} messages in the broker"
    for name, state in _waiting(stage):
        turns = [grant.task for grant in state.grants if grant.parked]
        yield f"{state.parked} wait for {name}, woken are {turns}"
    for letter in stage.backend.dead():
        yield f"{letter.dead.task} is dead: {letter.dead.cause}"


def locked(stage: Stage, names: Collection[str]) -> list[str]:
    """Of the locks *names* those that nobody can take although every lease must have ended."""

    timeout = 2 * stage.app.conf.dlock_ttl

    def refusal(name: str, tries: int = 3) -> str | None:
        try:
            with lock(Limit(name, LIMITS.get(name, 1)), app=stage.app, timeout=timeout):
                return None
        except BackendUnavailable:  # the connection of this very process may be lost, too
            if tries == 1:
                raise
            return refusal(name, tries - 1)
        except LockContended as exc:
            return str(exc)

    with ThreadPoolExecutor(len(names)) as together:
        return [said for said in together.map(refusal, names) if said is not None]


def _waiting(stage: Stage) -> Iterator[tuple[str, KeyState]]:
    """The keys with messages that nobody has taken, those that are debounced among them."""
    cursor: str | None = ""
    while cursor is not None:
        page = stage.backend.keys(cursor, waiting=True)
        for name in page.keys:
            state = stage.backend.peek(name)
            if state.parked > 0 or any(grant.parked for grant in state.grants):
                yield name, state
        cursor = page.cursor
