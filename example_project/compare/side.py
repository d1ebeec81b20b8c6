"""One side of the comparison: ``python -m example_project.compare.side careless``, for instance.

A process of its own, because the shop is one per process. It works in ``SHOP_DIR`` and leaves its
figures there.
"""

from __future__ import annotations

import json
import sys
import time
from dataclasses import asdict
from importlib import import_module

from example_project import workers
from example_project.command import Failed, Interrupted, Interrupts
from example_project.compare.counting import count
from example_project.compare.figures import FILE, SIDES, Figures
from example_project.compare.scenes import Scenes
from example_project.settings import FOLDER
from example_project.shop import models

APP = "example_project.shop.app"
SLOW = {"SHOP_SLOW": "example_project.compare.gates:reach"}
LAMPS, CUSTOMERS, PRICE, SCHEDULERS = 2, 5, 4900, 3
DAY = "2026-11-20"


def play(name: str, interrupts: Interrupts) -> Figures:
    """The whole of it with the tasks of the module *name*."""
    began = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - began:5.1f} s  {SIDES[name]:<14}  {text}", flush=True)

    models.create({"lamp": (PRICE, LAMPS)})
    tasks = import_module(f"example_project.shop.{name}")
    environment = {"SHOP_DIR": str(FOLDER), **SLOW}
    with workers.running(APP, 3, FOLDER, environment, concurrency=4) as crew:
        say("three workers are starting")
        scenes = Scenes(FOLDER, crew, tasks, say, interrupts.check, alone=name != "careless")
        scenes.rush("lamp", CUSTOMERS)
        scenes.payday()
        scenes.midnight(DAY, SCHEDULERS)
        scenes.close()
    return count(LAMPS, DAY)


def main() -> int:
    try:
        figures = play(sys.argv[1], Interrupts())
    except Interrupted:
        return 130
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    (FOLDER / FILE).write_text(json.dumps(asdict(figures)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
