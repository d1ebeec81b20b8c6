"""``make demo``: the shop under fire, and an audit of what it has left behind.

Three Celery workers apply 500 events. One worker is killed in the middle of a task; another is
stopped there past the end of its lease and then goes on, which no lock can prevent. The exit
code is 0 only if every finding of the audit holds.
"""

from __future__ import annotations

import os
import shutil
import signal
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from types import FrameType

from example_project import audit, generate, journal, orders, relay, workers
from example_project.display import Display
from example_project.stage import Stage, Standing
from example_project.workers import Worker

KILL_AFTER = 100
PAUSE_AFTER = 220
DEADLINE = 80.0


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, or asked us to end."""


class Failed(Exception):
    """Something that must happen did not, in time."""


class Interrupts:
    """Notes SIGINT and SIGTERM, to be acted on where nothing is left half done."""

    def __init__(self) -> None:
        self._seen = False
        for signum in (signal.SIGINT, signal.SIGTERM):
            signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._seen = True

    def check(self) -> None:
        """Raise Interrupted if one came."""
        if self._seen:
            raise Interrupted


class Demo:
    """One run in *folder*: the acts, in the order in which they are played."""

    def __init__(
        self, folder: Path, crew: list[Worker], display: Display, interrupts: Interrupts
    ) -> None:
        self._folder = folder
        self._crew = {worker.group: worker for worker in crew}
        self._display = display
        self._interrupts = interrupts
        self._stage = Stage(folder)
        self._database = folder / "orders.db"
        self._events = generate.read()
        self._relay = relay.Relay(self._events, self._database, relay.publish)
        self._until = time.monotonic() + DEADLINE

    def play(self) -> list[audit.Finding]:
        self._run_until(lambda: self._relay.applied >= KILL_AFTER)
        self._kill_one()
        self._run_until(lambda: self._relay.applied >= PAUSE_AFTER)
        paused = self._pause_one()
        self._run_until(lambda: self._relay.applied == len(self._events))
        self._run_until(lambda: self._refused(paused) and self._queue_is_empty())
        self._close_shop()
        rows, runs = audit.load(self._database)
        return audit.audit(
            audit.Evidence(self._events, rows, runs, journal.read(self._folder), paused)
        )

    def _kill_one(self) -> None:
        standing = self._stand_still()
        worker = self._crew.pop(standing.group)
        worker.kill()
        self._display.say(f"killed {worker.name} in the middle of event {standing.event_id}")

    def _pause_one(self) -> Standing:
        standing = self._stand_still()
        worker = self._crew[standing.group]
        self._stop(worker)
        self._display.say(f"stopped {worker.name} in the middle of event {standing.event_id}")
        stopped = time.monotonic()
        self._run_until(lambda: self._overtaken(standing))
        away = time.monotonic() - stopped
        self._stage.release(standing.event_id)
        worker.send(signal.SIGCONT)
        self._display.say(f"{worker.name} goes on after {away:.1f} s; its order has been taken")
        return standing

    def _stand_still(self) -> Standing:
        """Have the next event stand still in the middle of its task."""
        event_id = self._relay.upcoming[0].event_id
        self._stage.hold(event_id)
        self._run_until(lambda: self._stage.standing(event_id) is not None)
        standing = self._stage.standing(event_id)
        assert standing is not None
        return standing

    def _stop(self, worker: Worker) -> None:
        """Stop *worker* where it is not writing to a file that the others need.

        A database server would end the transaction of a client that is gone; a file waits for it.
        """
        while True:
            worker.send(signal.SIGSTOP)
            self._wait(0.1)
            if all(_can_be_written(self._folder / name) for name in ("orders.db", "dlock.db")):
                return
            worker.send(signal.SIGCONT)
            self._wait(0.02)

    def _overtaken(self, standing: Standing) -> bool:
        """Whether a newer token than that of *standing* has been seen for its order."""
        order_id = next(e.order_id for e in self._events if e.event_id == standing.event_id)
        _, runs = audit.load(self._database)
        return any(run.order_id == order_id and run.token > standing.token for run in runs)

    def _refused(self, standing: Standing) -> bool:
        return any(
            e["event"] == "StaleRejected" and e["mine"] == standing.token
            for e in journal.read(self._folder)
        )

    def _queue_is_empty(self) -> bool:
        return not any((self._folder / "broker" / "messages").iterdir())

    def _close_shop(self) -> None:
        for worker in self._crew.values():
            worker.ask_to_stop()
        for worker in self._crew.values():
            while worker.process.poll() is None:
                self._wait(0.02)

    def _run_until(self, reached: Callable[[], bool]) -> None:
        while not reached():
            self._relay.tick()
            self._display.show(self._relay.applied, len(self._events), self._relay.repeated)
            self._wait(0.05)

    def _wait(self, seconds: float) -> None:
        self._interrupts.check()
        for worker in self._crew.values():
            if worker.process.poll() not in (None, 0):
                raise Failed(f"{worker.name} has ended by itself, see {worker.log}")
        if time.monotonic() > self._until:
            raise Failed(f"not done after {DEADLINE:.0f} s")
        time.sleep(seconds)


def _can_be_written(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0.2, isolation_level=None)) as db:
        try:
            db.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        db.execute("ROLLBACK")
        return True


def main() -> int:
    interrupts = Interrupts()
    folder = Path(tempfile.mkdtemp(prefix="dlock-shop-"))
    os.environ["SHOP_DIR"] = str(folder)
    environment = {"SHOP_DIR": str(folder), "SHOP_PROVIDER": "example_project.stage:tell"}
    orders.create(folder / "orders.db")
    keep = False
    try:
        with Display() as display, workers.running(3, folder, environment) as crew:
            display.say("three workers are starting; events are on their way")
            findings = Demo(folder, crew, display, interrupts).play()
            display.verdict(findings)
            keep = not all(finding.holds for finding in findings)
    except Interrupted:
        print("interrupted; every worker has been ended", file=sys.stderr)
        return 130
    except Failed as failure:
        keep = True
        print(failure, file=sys.stderr)
    finally:
        if keep:
            print(f"what it has left is in {folder}", file=sys.stderr)
        else:
            shutil.rmtree(folder)
    return 1 if keep else 0


if __name__ == "__main__":
    sys.exit(main())
