"""Whether what a real delivery does, step by step, is what the worker of the model may do.

That worker (:mod:`tests.model.workers`) is asked itself at each step. What it asks the store is
answered by :class:`_Told`, as the real store has answered the real delivery, if that has asked for
the same. So nothing in here says what follows on what.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, cast
from unittest import mock

from celery_dlock.core.state import (
    Claim,
    Drop,
    NotHeld,
    Outcome,
    Reason,
    Renewed,
    Replaced,
    WaitMode,
)
from tests.model import explore as explorer
from tests.model.checks import Facts
from tests.model.config import Config, Task
from tests.model.explore import explore
from tests.model.key import Keys, Op
from tests.model.moves import Next
from tests.model.workers import worker_steps
from tests.model.world import IDLE, NOBODY, Model, Worker, World

#: What a step is called where it does not matter whose it is.
_WHOSE = re.compile(r"\s*\bt\d+\b| as \d+|, by a .*")

MINE, OTHER, BEFORE, NEXT = range(4)

NOTHING = Facts(frozenset(), frozenset(), frozenset(), frozenset(), due=False, empty=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """One step of a real delivery, in the words of the model.

    Of an operation also what was asked, and what came of it for which of the model's tasks.
    *or_else*: what it may have been as well; that shows later.
    """

    what: str
    claim: Claim | None = None
    outcome: Outcome | None = None
    verdict: Any = None
    wakes: tuple[int, ...] = ()
    or_else: str = ""


class NotAsked(Exception):
    """The worker of the model asks for something else."""


def in_words(claim: Claim, *, leaves: Outcome | None) -> dict[str, object]:
    """What of *claim* a rule looks at that has no clock, as far as the model has a word for it."""
    if leaves is not None and leaves is not Outcome.REPEAT:
        cools = leaves is Outcome.DONE or claim.begun or not claim.cooldown
        remembers = leaves is not Outcome.DONE or claim.done_ttl > 0
        return {"successor": claim.successor != "", "remembers": remembers, "cools": cools}
    queues = claim.has_message or claim.enqueues
    return {
        # Who has taken it after a look, or at once because it was woken, leaves it in the same way.
        "wait": claim.wait if leaves is None else claim.has_message,
        "mode": claim.mode,
        "limit": claim.limit,
        "place": claim.wait is not WaitMode.PLACE or claim.patience > 0,
        "gives up": queues and claim.gives_up > 0,
        "max_waiting": claim.max_waiting,
        "drop_oldest": claim.drop_oldest,
        "keep": claim.keep,
        "ordered": claim.ordered,
        "gives_way": claim.gives_way,
        "cools": claim.cooldown > 0 and not claim.enqueues,
        "begun": claim.begun,
    }


@dataclass(slots=True)
class _Told:
    """What the worker of the model takes for the keys: it says what the real one has heard."""

    seen: Seen = Seen("")
    facts: tuple[Facts, ...] = (NOTHING,)

    def enter(self, key: int, claim: Claim, token: int) -> Op:
        return self._op(claim, None, Drop(Reason.DONE))

    def leave(self, key: int, claim: Claim, outcome: Outcome) -> Op:
        return self._op(claim, outcome, NotHeld())

    def _op(self, claim: Claim, outcome: Outcome | None, otherwise: object) -> Op:
        seen = self.seen
        if seen.claim is None:
            return Op(key=0, verdict=otherwise, wakes=(), turns=(), ended=(), dead=())
        mine, real = in_words(claim, leaves=outcome), in_words(seen.claim, leaves=seen.outcome)
        if outcome is not seen.outcome or mine != real:
            raise NotAsked(f"{outcome or 'enter'} {mine}")
        wakes = tuple(f"t{task}" for task in seen.wakes)
        verdict = otherwise if seen.verdict is None else seen.verdict
        return Op(key=0, verdict=verdict, wakes=wakes, turns=(), ended=(), dead=())

    def renew(self, key: int, claim: Claim) -> Op:
        verdict: object = Renewed(1)
        if "gives way" in self.seen.what:
            verdict = Replaced(f"t{OTHER}")
        elif "is lost" in self.seen.what or "fence" in self.seen.what:
            verdict = NotHeld()
        return Op(key=0, verdict=verdict, wakes=(), turns=(), ended=(), dead=())

    def altered(self, key: int, *_: object) -> int:
        return key


@cache
def _model(spec: Task, retries: bool, early_ack: bool, cooldown: bool) -> Model:
    mine = replace(spec, retries_as=NEXT) if retries else replace(spec, reserves=False)
    tasks = (mine, Task(), Task(retries_as=MINE), Task())
    model = Model(Config("one", tasks, faults=2, early_ack=early_ack, cooldown=cooldown))
    model.names = {f"t{n}": n for n in range(len(tasks))}
    model.keys = cast("Keys", _Told())
    return model


class Follower:
    """Goes beside one delivery of a task that asks as *spec* says."""

    def __init__(self, spec: Task, *, early_ack: bool, cooldown: bool, woken: bool) -> None:
        self._woken = woken
        #: Whom of the model's workers it may be by now, each with the steps that lead there.
        self._at: dict[tuple[Model, tuple[Worker, ...]], frozenset[str]] = {
            (_model(spec, retries, early_ack, cooldown), (NOBODY,)): frozenset()
            for retries in (False, True)
        }
        self.way: list[str] = []

    @property
    def steps(self) -> frozenset[str]:
        """Those of the model's worker on its way here, :func:`in_full`."""
        return frozenset().union(*self._at.values())

    def step(self, seen: Seen) -> str | None:
        """Go on; what is wrong, where the worker of the model cannot do that."""
        after: dict[tuple[Model, tuple[Worker, ...]], frozenset[str]] = {}
        instead = dict[str, None]()
        for (model, workers), before in self._at.items():
            try:
                for label, then in self._steps(model, workers, seen):
                    instead.setdefault(in_short(label))
                    if in_short(label) in (seen.what, seen.or_else):
                        steps = before | {in_full(workers, label, then)}
                        after[model, then] = steps | after.get((model, then), frozenset())
            except NotAsked as asked:
                instead.setdefault(str(asked))
        if not after:
            return f"after {self.way} came {seen}, and the model knows {list(instead)}"
        self.way.append(seen.what)
        self._at = after
        return None

    def _steps(
        self, model: Model, workers: tuple[Worker, ...], seen: Seen
    ) -> Iterator[tuple[str, tuple[Worker, ...]]]:
        told = cast("_Told", model.keys)
        carried = frozenset({"t0"}) if self._woken else frozenset[str]()
        nonces = frozenset(("t0", str(worker.nonce)) for worker in workers)
        told.seen, told.facts = seen, (NOTHING._replace(carried=carried, nonces=nonces),)
        late = "fence" in seen.what
        ended = late or "is lost" in seen.what
        workers = tuple(w._replace(ended=w.ended or ended) for w in workers)
        newest = max(w.token for w in workers) + late
        world = World(
            key=0,
            broker=(MINE,) if NOBODY in workers and not self.way else (),
            workers=workers,
            sweeper=(),
            fence=(newest,) * max(1, model.config.tasks[MINE].limit),
            effects=(0,) * len(model.config.tasks),
            told=frozenset(),
            arrived=(),
            turns=(),
            left=1,
            unpublished=(),
        )
        for label, _, after in worker_steps(model, world):
            yield label, after.workers


def in_full(before: tuple[Worker, ...], label: str, after: tuple[Worker, ...]) -> str:
    """A step: where the workers that it changes were, what it is, and where they are then."""
    was, became = (Counter(w._replace(token=0, ended=False) for w in ws) for ws in (before, after))
    at, then = ("+".join(sorted(w.phase for w in part)) for part in (was - became, became - was))
    what = in_short(label)
    return what if what.startswith("publish") else f"{at or IDLE} -> {what} -> {then or IDLE}"


def in_short(label: str) -> str:
    return _WHOSE.sub("", label).strip()


def steps_of(*configs: Config) -> set[str]:
    """Every step that a worker of the model takes in any world of *configs*."""
    found = set[str]()

    def noted(model: Model, world: World) -> Iterator[Next]:
        for label, cost, after in worker_steps(model, world):
            found.add(in_full(world.workers, label, after.workers))
            yield label, cost, after

    with (
        mock.patch.object(explorer, "worker_steps", noted),
        mock.patch.object(explorer, "at_once", lambda _, world: world),
    ):
        for config in configs:
            explore(config)
    return found
