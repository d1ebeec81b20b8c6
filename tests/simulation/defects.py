"""Errors near to those that were made, planted in the shipped code: each has to be found."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from textwrap import dedent


@dataclass(frozen=True, slots=True)
class Defect:
    """*old* reads *new* in *function* of *module*, for whoever calls it by whatever name.

    It is met soon after *seed*; without that one it may take thousands of schedules.
    """

    module: str
    function: str
    old: str
    new: str
    seed: int = 1

    def plant(self) -> None:
        module = import_module(f"celery_dlock.{self.module}")
        owner_name, _, name = self.function.rpartition(".")
        owner = getattr(module, owner_name) if owner_name else module
        whole = inspect.unwrap(getattr(owner, name))
        text = dedent(inspect.getsource(whole))
        assert text.count(self.old) == 1, f"{self.function} has no {self.old!r} to spoil"
        spoilt = text.replace(self.old, self.new)
        made: dict[str, object] = {}
        exec(compile(spoilt, self.function, "exec"), vars(module), made)
        whole.__code__ = inspect.unwrap(made[name]).__code__  # type: ignore[arg-type]


#: These break no promise that a schedule would show; the model's worker does not do so.
DRIFTS: Mapping[str, Defect] = {
    "a task that has failed is only over": Defect(
        "messages.claims", "failed", "return Outcome.DONE", "return Outcome.OVER"
    ),
}

DEFECTS: Mapping[str, Defect] = {
    "a copy that meets its run is dropped": Defect(
        "delivery.plan",
        "_looks_again",
        'return Resend(min(max(left, 1.0), 60.0), known.history, "this task is running", ends)',
        "return Gone(ends)",
    ),
    "an answer that is lost takes nothing back": Defect(
        "locks.manager",
        "LockManager._take_back",
        "return self._told(self._backend.leave(left, outcome, message)).carried",
        "return False",
    ),
    "a killed body counts as done": Defect(
        "worker.request",
        "LockedRequest._release",
        "carried = here.manager.take_back(claims, self._outcome)",
        "carried = here.manager.take_back(claims, Outcome.DONE)",
    ),
    "a wake is not repeated": Defect(
        "worker.periodic",
        "Sweeper.run_once",
        "ours = here.wake(swept.wakes)",
        "ours = len(swept.wakes)",
    ),
    "a lost lease ends the task": Defect(
        "delivery.plan", "lost", "return Repeat(error, event)", "return FailWith(error, event)"
    ),
    "what is too long for the store is parked": Defect(
        "worker.parking",
        "Parking._enter",
        "taken, waited_for = 0, True",
        "taken, waited_for = len(entries) - len(fits), True",
        seed=2500,
    ),
    "a chain behind a task that is skipped does not end": Defect(
        "delivery.result_state", "skip_rest_of_chain", "while rest:", "while False:"
    ),
    "a chord behind a task that is skipped does not end": Defect(
        "delivery.result_state", "skip_rest_of_chain", "rest.extend(_within(signature))", "pass"
    ),
    "a coroutine that is cancelled keeps its lock": Defect(
        "tasks.block",
        "_locked_async_block",
        "finally:\n        await calls.end(release)",
        "except Exception:\n        raise\n    else:\n        await calls.end(release)",
    ),
    "a broker goes by another name for each way to write it": Defect(
        "messages.broker_name", "_host", "host = host.lower()", "return host"
    ),
    "a body waits for a key of its own": Defect(
        "locks.current", "held_term", "and of is store", "and of is key"
    ),
    "an order that is promised is that of arrival": Defect(
        "publishing.ordered",
        "Ordered._left",
        "return self._leave(body, options)",
        "return False",
        seed=2700,
    ),
    "what is not published is forgotten": Defect(
        "delivery.outgoing",
        "Outgoing._instead",
        "if late and not at_fault:",
        "if late:\n        return\n    if late:",
    ),
    "who is terminated in place of another is revoked": Defect(
        "worker.request",
        "LockedRequest._is_lost",
        "isinstance(_raised(exc_info), _LOST)",
        "isinstance(_raised(exc_info), WorkerLostError)",
        seed=8197296,
    ),
}
