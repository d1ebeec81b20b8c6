"""Several beats of one app in this process, on a clock that a test moves, with a store that fails.

They share one lock store, and die, fall asleep and are overtaken where a test says so. What they
send goes into a list.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from celery import Celery, current_app

from celery_dlock.beat.scheduler import LeaderScheduler
from celery_dlock.beat.tick_ledger import noting
from celery_dlock.core.events import TickRepeated, TicksMissed
from celery_dlock.runtime import forget, runtime

START = datetime(2026, 11, 21, 12, 0, 3, tzinfo=UTC)


class Died(BaseException):
    """The process is gone, here and now."""


@dataclass(frozen=True)
class Sent:
    """One publish: by which beat, of which entry, for which instant, under which id."""

    beat: int
    entry: str
    due: datetime
    task_id: str


class Beats:
    """The beats; ``faults`` are run once each, by the name of the point that is passed next."""

    def __init__(self, folder: Path, schedule: dict[str, Any], **config: Any) -> None:
        self.now = START
        self.sent: list[Sent] = []
        self.events: list[Any] = []
        self.faults: dict[str, Callable[[], None]] = {}
        self.asked: Counter[str] = Counter()
        self.app = Celery("shop", set_as_current=False, broker="memory://")
        self.app.conf.update(
            dlock_url=f"sqlite:///{folder / 'locks.db'}",
            dlock_beat_scheduler="celery.beat:Scheduler",
            dlock_sinks=[self.events.append],
            beat_schedule={
                name: {"task": name, "schedule": when} for name, when in schedule.items()
            },
            result_expires=None,
        )
        self.app.conf.update(config)
        self.app.now = lambda: self.now
        self.app.send_task = self._send
        self.backend = noting(runtime(self.app).backend)
        for operation in ("enter", "leave", "note", "notes"):
            setattr(self.backend, operation, self._failing(operation))
        self.beats = [LeaderScheduler(self.app) for _ in range(3)]
        self.runs: int | None = None

    def tick(self, number: int) -> None:
        """Let one beat do all that it has to do now."""
        beat, before, self.runs = self.beats[number], self.runs, number
        try:
            beat._next = beat._looks = beat._leader._rests_until = 0.0
            for _ in range(500):
                if beat.tick() > 0:
                    return
                self.advance(0.0001)  # Celery looks a little early, and then again and again
            raise AssertionError("it does not come to an end")
        except Died:
            self.die(number)
        finally:
            self.runs = before

    def tick_all(self) -> None:
        for number in range(len(self.beats)):
            self.tick(number)

    def advance(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    def leader(self) -> int | None:
        """Which beat has the lock, as the store says."""
        holders = self.backend.peek(self.beats[0]._leader.key).holders
        return next(
            (
                number
                for number, beat in enumerate(self.beats)
                if holders and holders[0].task.startswith(beat._leader.who)
            ),
            None,
        )

    def depose(self, number: int) -> None:
        """Its lease ends in the store, as after a pause, and it does not know."""
        lease = self.beats[number]._leader.lease
        if lease is not None:
            runtime(self.app).manager.take_back([term.claim for term in lease.terms])

    def die(self, number: int) -> None:
        """Its process ends without a word; another is started there."""
        self.depose(number)
        self.beats[number]._leader._hold = None  # what it wants to do at exit comes too late
        self.beats[number] = LeaderScheduler(self.app)

    def close(self) -> None:
        for beat in self.beats:
            beat.close()
        forget(self.app)
        self.backend.close()  # also where a test has forgotten the application before

    def told(self, kind: type[Any]) -> list[tuple[str, Any]]:
        return [(event.subject.label, event) for event in self.events if isinstance(event, kind)]

    def repeated(self) -> Counter[tuple[str, str]]:
        """How often beats have said that they may be sending a tick again."""
        return Counter((entry, event.due) for entry, event in self.told(TickRepeated))

    def missed(self) -> list[tuple[str, str, str]]:
        """The ticks that beats have said were missed: entry, first and until."""
        return [(entry, event.first, event.until) for entry, event in self.told(TicksMissed)]

    def dues(self, entry: str) -> list[datetime]:
        return [sent.due for sent in self.sent if sent.entry == entry]

    def _send(self, name: str, *args: Any, **options: Any) -> None:
        self._pass("before it is published")
        assert self.runs is not None
        due = datetime.fromisoformat(options["headers"]["dlock_due"])
        self.sent.append(Sent(self.runs, name, due, options["task_id"]))
        self._pass("after it was published")

    def _failing(self, operation: str) -> Callable[..., Any]:
        really = getattr(self.backend, operation)

        def call(*args: Any, **kwargs: Any) -> Any:
            self.asked[operation] += 1
            self._pass(f"before {operation}")
            answer = really(*args, **kwargs)
            self._pass(f"after {operation}")
            return answer

        return call

    def _pass(self, point: str) -> None:
        fault = self.faults.pop(point, None)
        if fault is not None:
            fault()


@contextmanager
def beats(folder: Path, schedule: dict[str, Any], **config: Any) -> Iterator[Beats]:
    made = Beats(folder, schedule, **config)
    usual = current_app._get_current_object()
    made.app.set_current()  # entries that come from a file know no other
    try:
        yield made
    finally:
        made.faults.clear()
        made.close()
        usual.set_current()
