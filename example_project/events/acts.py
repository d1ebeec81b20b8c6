"""What is done to the workers while they work: one is killed, one is paused."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from example_project import journal
from example_project.command import Failed
from example_project.events import audit
from example_project.events.display import Display
from example_project.events.generate import OrderEvent
from example_project.events.relay import Relay
from example_project.events.stage import Stage, Standing
from example_project.workers import Worker

KILL_AFTER = 100
PAUSE_AFTER = 220
#: Seconds in which nothing is applied before it is called off; a busy machine is only slow.
PATIENCE = 40.0


class Acts:
    """One performance in *folder*; *check* is called between steps and may raise to end it."""

    def __init__(
        self,
        folder: Path,
        events: Sequence[OrderEvent],
        relay: Relay,
        crew: Sequence[Worker],
        display: Display,
        check: Callable[[], None],
    ) -> None:
        self._folder = folder
        self._events = events
        self._relay = relay
        self._crew = {worker.group: worker for worker in crew}
        self._display = display
        self._check = check
        self._stage = Stage(folder)
        self._seen = 0
        self._moved = time.monotonic()

    def play(self) -> Standing:
        """All of it; returns who was paused."""
        self._until_applied(KILL_AFTER)
        self._kill_one()
        self._until_applied(PAUSE_AFTER)
        paused = self._pause_one()
        self._until_applied(len(self._events))
        self._run_until(lambda: self._has_written(paused) and self._queue_is_empty())
        self._close_shop()
        return paused

    def _kill_one(self) -> None:
        standing = self._stand_still()
        worker = self._crew.pop(standing.group)
        worker.kill()
        self._display.say(f"killed {worker.name} in the middle of event {standing.event_id}")

    def _pause_one(self) -> Standing:
        standing = self._stand_still()
        worker = self._crew[standing.group]
        worker.pause_between_writes(self._folder, self._wait)
        self._display.say(f"stopped {worker.name} in the middle of event {standing.event_id}")
        stopped = time.monotonic()
        self._run_until(lambda: self._is_overtaken(standing))
        away = time.monotonic() - stopped
        self._stage.release(standing.event_id)
        worker.resume()
        self._display.say(
            f"{worker.name} goes on after {away:.1f} s; its lease has ended, others have written"
        )
        return standing

    def _stand_still(self) -> Standing:
        """Have the next event stand still in the middle of its task."""
        event_id = self._relay.upcoming[0].event_id
        self._stage.hold(event_id)
        self._run_until(lambda: self._stage.standing(event_id) is not None)
        standing = self._stage.standing(event_id)
        assert standing is not None
        return standing

    def _is_overtaken(self, standing: Standing) -> bool:
        """Whether a newer token than that of *standing* has been seen for its order."""
        order_id = next(e.order_id for e in self._events if e.event_id == standing.event_id)
        _, runs = audit.load(self._folder / "orders.db")
        return any(run.order_id == order_id and run.token > standing.token for run in runs)

    def _has_written(self, standing: Standing) -> bool:
        """Whether the late write has been tried, with success or without."""
        _, runs = audit.load(self._folder / "orders.db")
        return any(run.token == standing.token for run in runs) or any(
            entry["event"] == "StaleRejected" and entry["mine"] == standing.token
            for entry in journal.read(self._folder)
        )

    def _queue_is_empty(self) -> bool:
        return not any((self._folder / "broker" / "messages").iterdir())

    def _close_shop(self) -> None:
        self._display.say("closing: every worker ends what it has begun")
        for worker in self._crew.values():
            worker.ask_to_stop()
        for worker in self._crew.values():
            while worker.process.poll() is None:
                self._wait(0.02)

    def _until_applied(self, count: int) -> None:
        self._run_until(lambda: self._relay.applied >= count)

    def _run_until(self, reached: Callable[[], bool]) -> None:
        while True:
            self._relay.tick()
            self._display.show(self._relay.applied, len(self._events), self._relay.repeated)
            if self._relay.applied > self._seen:
                self._seen, self._moved = self._relay.applied, time.monotonic()
            if reached():
                return
            self._wait(0.05)

    def _wait(self, seconds: float) -> None:
        self._check()
        for worker in self._crew.values():
            if worker.process.poll() not in (None, 0):
                raise Failed(f"{worker.name} has ended by itself:\n{worker.last_words()}")
        if time.monotonic() > self._moved + PATIENCE:
            raise Failed(f"nothing was applied for {PATIENCE:.0f} s, after {self._seen} events")
        time.sleep(seconds)
