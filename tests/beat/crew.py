"""Several beats of one application, each with its own way to the lock store, and their clock."""

from __future__ import annotations

import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

from celery import Celery

from example_project.workers import can_be_written
from tests.beat.checker import missing, violations
from tests.beat.entries import BASE, ENTRIES
from tests.beat.evidence import Evidence, instant, read, terms
from tests.services.beat import APP, Beat
from tests.services.beat_entries import Entry
from tests.services.brokers import left
from tests.services.campaign import Violation
from tests.services.fast_clock import FastClock
from tests.services.lab import Journal, used_urls
from tests.services.until import until
from tests.services.worker import Worker

#: How many of the beats' seconds one of ours has.
SPEED = 60.0

#: Seconds that all may take which has nothing to wait for but processors.
PATIENCE = 90.0


class Crew:
    """Its journal and logs are in *folder*. *urls* are the lock store's, one for each beat."""

    def __init__(
        self,
        folder: Path,
        celery: Mapping[str, Any],
        urls: Sequence[str],
        entries: Sequence[Entry] = ENTRIES,
    ) -> None:
        self.entries = entries
        self.journal = Journal(folder / "journal")
        self.clock = FastClock.started(BASE, SPEED, folder)
        self.since = BASE
        self._folder = folder
        self._app = Celery("beats", set_as_current=False)
        self._app.conf.update(celery)
        common = {
            "folder": str(folder),
            "clock": self.clock.config,
            "entries": [entry.config for entry in entries],
        }
        used_urls.extend(urls)
        self.beats = [
            Beat(folder, {**common, "celery": {**CELERY, **celery, "dlock_url": url}}, f"beat{n}")
            for n, url in enumerate(urls)
        ]

    def start(self) -> None:
        """Start all of them, at once."""
        for beat in self.beats:
            beat.start(ready=False)

    def kill(self) -> None:
        """Nothing of them is left."""
        for beat in self.beats:
            beat.kill()

    def leader(self) -> Beat | None:
        """Who leads, by what it has told itself."""
        alive = {beat.pid: beat for beat in self.beats if beat.process is not None}
        leading = [alive[t.pid] for t in terms(self.journal) if t.pid in alive and t.leads]
        return leading[-1] if leading else None

    def new_leader(self, *others: Beat) -> Beat:
        """Wait until somebody leads who is none of *others*; it."""

        def found() -> list[Beat]:
            leader = self.leader()
            return [leader] if leader and leader not in others else []

        who = f"somebody leads besides {[beat.name for beat in others]}"
        return until(who, found, PATIENCE)[0]

    def settle(self) -> None:
        """Wait until each entry that is often due has run; from now on all that is due counts."""
        often = {entry.name for entry in self.entries if not entry.solar}

        def all_ran() -> bool:
            return often <= {each["entry"] for each in self.journal.read("ran")}

        until("each entry has run", all_ran, PATIENCE)
        self.since = self.clock.now()

    def _databases(self) -> list[Path]:
        """Without the schedules, which Debian's Python keeps in files of another kind."""
        files = self._folder.glob("*.db")
        return [file for file in files if not file.name.endswith(".schedule.db")]

    def pause(self, beat: Beat) -> float:
        """SIGSTOP where it locks no file, which nobody would take from it; when that was."""

        def stands_well() -> bool:
            beat.pause()
            if all(map(can_be_written, self._databases())):
                return True
            beat.resume()
            return False

        began = time.monotonic()
        until("it stands where it locks no file", stands_well)
        return began

    def resume(self, beat: Beat, began: float) -> None:
        """SIGCONT; it is noted that it stood still since *began*."""
        self.journal.write("stood still", beat=beat.name, since=began, mono=time.monotonic())
        beat.resume()

    def hold(self, when: str, entry: str) -> tuple[Beat, dict[str, Any]]:
        """Stop who publishes *entry* next, ``before`` or ``after``; who and what that is."""
        held = len(self.journal.read("held"))
        written = self._folder / "hold.part"
        written.write_text(entry)
        written.rename(self._folder / f"hold-{when}")
        found = self.journal.wait_for("held", held + 1, PATIENCE)[-1]
        return next(beat for beat in self.beats if beat.name == found["beat"]), found

    def let_go(self, beat: Beat) -> None:
        """It may go on."""
        (self._folder / f"go-{beat.name}").touch()

    def finish(self, worker: Worker) -> list[Violation]:
        """Let all run that is due by now, stop everything, and check it."""
        to = self.catch_up()
        codes = self.shut_down()
        assert set(codes) == {0}, codes
        self.drain(worker)
        return violations(self.evidence(to))

    def drain(self, worker: Worker) -> None:
        """Stop *worker* when it has run all that was sent."""
        until("nothing waits for the worker", lambda: not left(self._app), PATIENCE)
        worker.stop()

    def catch_up(self) -> datetime:
        """Wait until all has run that is due by now; when that is. The checker knows if not."""
        now = self.clock.now()
        with suppress(AssertionError):
            until("all has run", lambda: not list(missing(self.evidence(now))), PATIENCE)
        return now

    def put_on(self, seconds: float) -> None:
        """Put the clock on, or back; what it has shown before it was put back is noted."""
        if seconds < 0:
            shown = self.clock.now().isoformat()
            self.journal.write("put back", mono=time.monotonic(), now=shown)
        self.clock.jump(seconds)

    def shut_down(self) -> list[int]:
        """SIGTERM to all that run, at once; their exit codes."""
        running = [beat for beat in self.beats if beat.process is not None]
        for beat in running:
            beat.send(signal.SIGTERM)
        return [beat.process.wait(PATIENCE) for beat in running if beat.process is not None]

    def evidence(self, to: datetime) -> Evidence:
        return read(self.journal, self.entries, self.since, to)

    def ran_after(self, at: datetime, count: int = 2) -> bool:
        """Whether so many ticks have run that fell due after *at*."""
        return sum(instant(each["due"]) > at for each in self.journal.read("ran")) >= count

    def goes_on(self) -> None:
        """Wait until what falls due from now on is run, too."""
        now = self.clock.now()
        until("it goes on", lambda: self.ran_after(now), PATIENCE)

    def logs(self) -> str:
        """The end of each log."""
        return "\n".join(f"{b.name}: {b.log[-1500:]}" for b in self.beats if b.log_path.exists())


def worker(folder: Path, celery: Mapping[str, Any]) -> Worker:
    """Who runs what the beats send."""
    return Worker(folder, {"celery": {**CELERY, **celery}}, "worker", "threads", 4, APP)


CELERY = {
    "task_ignore_result": True,
    "result_expires": None,  # nothing that cleans up beside the entries of the test
    "broker_connection_retry_on_startup": True,
    "worker_enable_remote_control": False,
    "beat_max_loop_interval": 0.2,
}
