"""The stage on which the stand-in plays a scenario, in the process of the simulation."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

from tests.simulation import play, stage
from tests.simulation.kernel import Kernel
from tests.simulation.plan import Crew, Plan
from tests.simulation.scenarios import SCENARIOS, Scenario
from tests.simulation.system import CHILDREN

#: Seconds of the schedule within which anything comes that a scenario waits for.
LONG = 120.0

#: So many steps, and it goes in circles.
ENDLESS = 20_000


class Simulated(play.World, stage.Stage):
    """What it leaves free is drawn from a seed, as in any schedule."""

    def __init__(self, scenario: Scenario, seed: int) -> None:
        crew = Crew(
            scenario.slots,
            scenario.prefetch,
            scenario.prefork,
            hears_revocations=False,
            misses="",
        )
        stays = (0.0, 0.5, 0.9)[seed % 3]
        plan = Plan(seed, stays, [crew], softly=scenario.softly, cancels=scenario.cancels)
        super().__init__(plan)
        self.app = _app()
        self.app.conf.update(scenario.conf)
        self.scenario = scenario
        self.noted: list[Mapping[str, Any]] = []
        self.free: set[str] = set()
        self.found: Mapping[str, Any] = {}

    def _call_all(self) -> None:
        self.found = self.scenario.act(self)

    def _run(self) -> None:
        _playing[:] = [self]
        while not (self._calling.over or self.kernel.broken) and self.kernel.step():
            assert self.kernel.steps < ENDLESS, "it goes in circles"

    def _judge(self) -> None:
        for who, error in self.kernel.broken:
            raise AssertionError(f"{who}: {self.noted}") from error

    def notes(self) -> Sequence[Mapping[str, Any]]:
        return self.noted

    def wait(self, what: str, condition: Callable[[], bool]) -> None:
        until = self.kernel.now + LONG
        while not condition():
            assert self.kernel.now < until, what
            self.kernel.wait(0.02)

    def go(self, *names: str) -> None:
        self.free.update(names)

    def start(self) -> None:
        self._hire(0)
        self.wait("it consumes", lambda: self.workers[-1] in self.broker.workers)

    def kill_body(self, name: str) -> None:
        began = [each for each in self.noted if each["what"] == "began" and each["id"] == name]
        (child,) = (c for c in CHILDREN.values() if c.process.name == began[-1]["pid"])
        self.kernel.kill(child.process)

    def kill(self, number: int = 0) -> None:
        self.workers[number].die(with_children=True)

    def disconnect(self) -> None:
        self.workers[-1].lose_connection()

    def revoke(self, name: str, *, terminate: bool = False) -> None:
        (worker,), told = self._alive(), list[str]()
        worker.hear(partial(worker.revoke, name, terminate=terminate))
        worker.hear(partial(told.append, name))
        self.wait("it knows", lambda: bool(told))

    def stop(self) -> None:
        alive = self._alive()
        for worker in alive:
            worker.stop()
        self.wait("they shut down", lambda: all(each.closed for each in alive))

    def stop_cold(self) -> None:
        for worker in self._alive():
            worker.stop_cold()

    def gone(self) -> None:
        alive = [each for each in self.workers if each.process.alive]
        self.wait("all have stopped", lambda: all(each.stopped for each in alive))

    def left(self) -> list[list[Any]]:
        queues = self.broker.queues.values()
        return [[sent.task, sent.redelivered] for queue in queues for sent in queue]


#: The stage of this moment.
_playing: list[Simulated] = []


def _note(what: str, **about: Any) -> None:
    pid = Kernel.here().me().process.name
    _playing[0].noted.append({"what": what, "pid": pid, **about})


def _hold(name: str) -> None:
    _playing[0].wait(f"{name} may go on", lambda: name in _playing[0].free)


@cache
def _app() -> Any:
    app = play.app()
    stage.register(app, _note, _hold)
    stage.watch(_note)
    return app


def seen(seeds: int) -> Mapping[str, Sequence[Mapping[str, Any]]]:
    """Of each scenario what is seen with so many seeds."""
    found: dict[str, list[Mapping[str, Any]]] = {}
    for name, scenario in SCENARIOS.items():
        for seed in range(seeds):
            simulated = Simulated(scenario, seed)
            simulated.play()
            found.setdefault(name, []).append(simulated.found)
    return found
