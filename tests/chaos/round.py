"""One round: a schedule is played on a stage, all is worked off, and the checker has its say."""

from __future__ import annotations

import time
from collections import Counter
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from celery_dlock.errors import BackendUnavailable
from tests.chaos import ending
from tests.chaos.checker import Evidence, passings, violations
from tests.chaos.faults import Struck, strike
from tests.chaos.plan import Kind, Schedule, Sending, Strike
from tests.chaos.runs import runs_of
from tests.chaos.sender import Sender
from tests.chaos.stage import End, Setting, Stage, open_stage
from tests.chaos.unheard import unheard
from tests.services.campaign import Violation

#: Faults of the whole store, of which there is one at a time.
AWAY = frozenset({Kind.STORE_AWAY, Kind.PAUSE_STORE})
#: Seconds between two looks at the store and at the workers.
TICK = 0.05


@dataclass(frozen=True, slots=True)
class Figures:
    """What a round came to.

    ``live`` of its runs could trust their lease, and ended; ``passed`` of its tasks were passed
    over, which a fault explains.
    """

    tasks: int
    runs: int
    live: int
    sent_again: int
    passed: int
    struck: Counter[Kind]
    seconds: float
    violations: tuple[Violation, ...]

    def __str__(self) -> str:
        return (
            f"{self.tasks} tasks in {self.runs} runs ({self.live} live to their end), "
            f"{self.struck.total()} faults, {len(self.violations)} violations, {self.seconds:.0f} s"
        )


@dataclass(frozen=True, slots=True, eq=False)
class UnderWay:
    """A fault that has begun, and when it is to be over."""

    kind: Kind
    begin: float
    until: float
    fault: ExitStack


class Play:
    """A schedule on its stage, one act after the other in this thread."""

    def __init__(self, stage: Stage, schedule: Schedule) -> None:
        self.sender = Sender(stage)
        self.struck: list[Struck] = []
        self._stage = stage
        self._schedule = schedule
        self._under_way: list[UnderWay] = []
        self._faults = ExitStack()

    def perform(self) -> None:
        """Play all of it; nothing is paused or away afterwards, whatever happens."""
        began = time.monotonic()
        acts: list[Sending | Strike] = [*self._schedule.sendings, *self._schedule.strikes]
        acts.sort(key=lambda act: act.at)
        with self._faults:
            for act in acts:
                self._recover()  # whoever publishes may have waited for what is struck
                while time.monotonic() < began + act.at:
                    self._tick()
                self._perform(act)
            while self._under_way:
                self._tick()

    def work_off(self, patience: float) -> bool:
        """Whether nothing is left to wait for, when nothing was done for *patience* seconds.

        A slow machine does one after the other, and is as good as a fast one.
        """
        deadline, done = time.monotonic() + patience, 0
        since: dict[str, float] = {}
        while time.monotonic() < deadline:
            self._tick()
            effects = len(self._stage.resource.effects())
            if effects > done:
                deadline, done = time.monotonic() + patience, effects
            with suppress(BackendUnavailable):  # of the replies to lose some may be left
                if ending.drained(self._stage, self.sender, since):
                    return True
        return False

    def ends(self) -> dict[str, End]:
        """Of the tasks those that have ended."""
        ids = {sent.id for sent in self.sender.sent}
        return {task: end for task in ids if (end := self._stage.end(task)) is not None}

    def _perform(self, act: Sending | Strike) -> None:
        if isinstance(act, Sending):
            self.sender.send(act)
            return
        if act.kind in AWAY and any(each.kind in AWAY for each in self._under_way):
            return  # it is away already
        begin = time.monotonic()
        fault = self._faults.enter_context(ExitStack())
        fault.enter_context(strike(self._stage, act, self.sender.copy))
        self._under_way.append(UnderWay(act.kind, begin, begin + act.length, fault))

    def _recover(self) -> None:
        for each in [each for each in self._under_way if time.monotonic() >= each.until]:
            each.fault.close()
            self.struck.append(Struck(each.kind, each.begin, time.monotonic()))
            self._under_way.remove(each)

    def _tick(self) -> None:
        self._recover()
        self._stage.supervise()
        self.sender.flush()
        self.sender.revoke()
        self.sender.look({effect.task for effect in self._stage.resource.effects()})
        time.sleep(TICK)


def play(schedule: Schedule, setting: Setting, folder: Path, patience: float = 90.0) -> Figures:
    """Play *schedule* below *folder*; the workers' logs are there afterwards."""
    began = time.monotonic()
    with open_stage(folder, setting) as stage:
        acts = Play(stage, schedule)
        acts.perform()
        still_up = stage.shut_down() if acts.work_off(patience) else []
        for worker in stage.workers:
            worker.kill()
        lost = [Struck(Kind.LOSE_REPLIES, at, at) for at in stage.store.lost_replies]
        evidence = Evidence(
            sent=acts.sender.sent,
            effects=stage.resource.effects(),
            seen=stage.resource.seen(),
            struck=[*acts.struck, *lost],
            ends=acts.ends(),
            locked=ending.locked(stage, schedule.locks),
            left=[*ending.left(stage), *(f"{name} did not shut down" for name in still_up)],
            unheard=[Struck(Kind.LOSE_REPLIES, at, at) for at in unheard(folder)],
            ttl=setting.ttl,
        )
    runs = runs_of(evidence.seen)
    return Figures(
        tasks=len(evidence.sent),
        runs=len({run.id for run in runs}),
        live=len({run.id for run in runs if run.ended and run.live}),
        sent_again=len(acts.sender.again),
        passed=sum(each.explained for each in passings(evidence)),
        struck=Counter(each.kind for each in acts.struck),
        seconds=time.monotonic() - began,
        violations=tuple(violations(evidence)),
    )
