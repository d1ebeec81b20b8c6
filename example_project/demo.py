"""``make demo``: the shop under fire, and an audit of what it has left behind.

Three Celery workers apply 500 events. One worker is killed in the middle of a task; another is
stopped there past the end of its lease and then goes on, which no lock can prevent. The exit
code is 0 only if every finding of the audit holds, 130 after Ctrl-C.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
from pathlib import Path
from types import FrameType

from example_project import generate, journal, orders, workers
from example_project.acts import Acts, Failed
from example_project.audit import Evidence, audit, load
from example_project.display import Display
from example_project.relay import Relay, publish


class Interrupted(Exception):
    """Somebody pressed Ctrl-C, closed the terminal, or asked us to end."""


class Interrupts:
    """Notes such a signal, to be acted on where nothing is left half done."""

    def __init__(self) -> None:
        self._seen = False
        for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(signum, self._note)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self._seen = True

    def check(self) -> None:
        """Raise Interrupted if one came."""
        if self._seen:
            raise Interrupted


def run(folder: Path, interrupts: Interrupts) -> bool:
    """The whole demo in an empty *folder*; whether every finding holds."""
    os.environ["SHOP_DIR"] = str(folder)
    environment = {"SHOP_PROVIDER": "example_project.stage:tell"}
    database = folder / "orders.db"
    orders.create(database)
    events = generate.read()
    with Display() as display, workers.running(3, folder, environment) as crew:
        display.say("three workers are starting, and the events are on their way")
        relay = Relay(events, database, publish)
        paused = Acts(folder, events, relay, crew, display, interrupts.check).play()
        findings = audit(Evidence(events, *load(database), journal.read(folder), paused))
        display.verdict(findings)
        return all(finding.holds for finding in findings)


def main() -> int:
    interrupts = Interrupts()
    folder = Path(tempfile.mkdtemp(prefix="dlock-shop-"))
    keep = False
    try:
        keep = not run(folder, interrupts)
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
