"""Errors near to those that were made, planted in the shipped code: each has to be found."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from billiard.exceptions import WorkerLostError

from celery_dlock.core.state import Outcome
from celery_dlock.delivery.plan import FailWith, Gone
from celery_dlock.messages.refusals import is_refusal
from celery_dlock.runtime import runtime
from celery_dlock.worker.periodic import LONGEST_SLEEP
from celery_dlock.worker.request import _raised
from tests.services.planted import Instead, planted


@dataclass(frozen=True, slots=True)
class Defect:
    """*instead* is done for *function* of *module*.

    It is met soon after *seed*; without that one it may take thousands of schedules.
    """

    module: str
    function: str
    instead: Instead
    seed: int = 1

    def plant(self) -> None:
        module = import_module(f"celery_dlock.{self.module}")
        owner, _, name = self.function.rpartition(".")
        owner_of = getattr(module, owner) if owner else module
        _PLANTED.enter_context(planted(owner_of, name, self.instead))


#: Until the process ends.
_PLANTED = ExitStack()


def _does_nothing(*_: Any) -> None: ...


def _takes_nothing_back(_: Any, manager: Any, claim: Any, *__: Any) -> bool:
    manager._keeper.forget([claim])
    return False


def _counts_as_done(whole: Callable[..., bool], request: Any) -> bool:
    request._outcome = Outcome.DONE
    return whole(request)


def _sweeps_and_publishes_nothing(_: Any, sweeper: Any) -> float:
    due_in = runtime(sweeper._app).backend.sweep().next_in
    return LONGEST_SLEEP if due_in is None else min(due_in, LONGEST_SLEEP)


def _all_is_parked(whole: Any, parking: Any, key: str, messages: Sequence[Any]) -> tuple[int, bool]:
    return len(messages), whole(parking, key, messages)[1]


def _ends_no_chain(_: Any, __: Any, request: Any, ___: Any) -> None:
    request.chain = request.callbacks = None


_NOT_RELEASED: list[Any] = []


@asynccontextmanager
async def _keeps_its_lock(whole: Any, *args: Any, **options: Any) -> AsyncIterator[Any]:
    block = whole(*args, **options)
    _NOT_RELEASED.append(block)  # the garbage collector would release it
    yield await block.__aenter__()
    await block.__aexit__(None, None, None)


def _forgets_it(whole: Any, outgoing: Any, error: Exception, *of: Any) -> None:
    if not outgoing.execution.task.acks_late or is_refusal(error):
        whole(outgoing, error, *of)


def _terminated_is_revoked(whole: Any, request: Any, exc_info: Any) -> bool:
    return whole(request, exc_info) and isinstance(_raised(exc_info), WorkerLostError)


DEFECTS: Mapping[str, Defect] = {
    "a copy that meets its run is dropped": Defect(
        "delivery.plan", "_looks_again", lambda *_: Gone("another delivery of this task is running")
    ),
    "an answer that is lost takes nothing back": Defect(
        "locks.manager", "LockManager._take_back", _takes_nothing_back
    ),
    "a killed body counts as done": Defect(
        "worker.request", "LockedRequest._release", _counts_as_done
    ),
    "a wake is not repeated": Defect(
        "worker.periodic", "Sweeper.run_once", _sweeps_and_publishes_nothing
    ),
    "a lost lease ends the task": Defect(
        "delivery.plan", "lost", lambda whole, *of: FailWith(of[1], whole(*of).event)
    ),
    "what is too long for the store is parked": Defect(
        "worker.parking", "Parking._enter", _all_is_parked, seed=800200
    ),
    "a chain behind a task that is skipped does not end": Defect(
        "delivery.result_state", "skip_rest_of_chain", _ends_no_chain
    ),
    "a chord behind a task that is skipped does not end": Defect(
        "delivery.result_state", "_within", lambda *_: []
    ),
    "a coroutine that is cancelled keeps its lock": Defect(
        "tasks.block", "_locked_async_block", _keeps_its_lock
    ),
    "a broker goes by another name for each way to write it": Defect(
        "messages.broker_name", "_host", lambda _, host: host
    ),
    "a body waits for a key of its own": Defect("locks.current", "held_term", _does_nothing),
    "an order that is promised is that of arrival": Defect(
        "publishing.outbox", "Outbox._ask_or_go_on", lambda *_: False
    ),
    "what is not published is forgotten": Defect(
        "delivery.outgoing", "Outgoing._park_or_give_back", _forgets_it
    ),
    "who is terminated in place of another is revoked": Defect(
        "worker.request", "LockedRequest._is_lost", _terminated_is_revoked, seed=123497
    ),
    "a limit that has fallen lets others in": Defect(
        "core.edits", "limit_of", lambda *_: 9, seed=20
    ),
}
