"""The order events under fire, and an audit of what is left behind.

Three Celery workers apply 500 events. One worker is killed in the middle of a task; another is
stopped there past the end of its lease and then goes on, which no lock can prevent. The exit
code is 0 only if every finding of the audit holds, 130 after Ctrl-C.
"""

from __future__ import annotations

import sys
from pathlib import Path

from example_project import command, journal, workers
from example_project.command import Interrupts
from example_project.events import generate, orders
from example_project.events.acts import Acts
from example_project.events.audit import Evidence, audit, load
from example_project.events.display import Display
from example_project.events.relay import Relay, publish

APP = "example_project.events.app"


def run(folder: Path, interrupts: Interrupts) -> bool:
    """The whole demo in an empty *folder*; whether every finding holds."""
    environment = {"SHOP_PROVIDER": "example_project.events.stage:tell"}
    database = folder / "orders.db"
    orders.create(database)
    events = generate.read()
    with Display() as display, workers.running(APP, 3, folder, environment) as crew:
        display.say("three workers are starting, and the events are on their way")
        relay = Relay(events, database, publish)
        paused = Acts(folder, events, relay, crew, display, interrupts.check).play()
        findings = audit(Evidence(events, *load(database), journal.read(folder), paused))
        display.verdict(findings)
        return all(finding.holds for finding in findings)


if __name__ == "__main__":
    sys.exit(command.main(run))
