"""What ``python -m tests.simulation`` is asked for, and says."""

from __future__ import annotations

import argparse
import gc
import json
import logging
import subprocess
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from random import randrange
from typing import Any

from tests.simulation.defects import DEFECTS
from tests.simulation.play import play, shortest
from tests.simulation.simulated import seen


def main() -> int:
    options = _options()
    logging.disable(logging.CRITICAL)
    warnings.simplefilter("ignore", RuntimeWarning)  # by which Celery logs, too
    if options.defect is not None:
        DEFECTS[options.defect].plant()
    if options.scenarios:
        _say(json.dumps(seen(options.scenarios)))
        return 0
    if options.schedules is None:
        return _tell(options.seed)
    figures = Counter[str]()
    if options.jobs == 1:
        figures.update(_played(options.seed, options.schedules, until_wrong=options.until_wrong))
        _say(json.dumps(figures) if options.figures else "")
    else:
        for part in _apart(options.seed, options.schedules, options.jobs):
            figures.update(part)
    if not options.figures:
        _say(f"seeds from {options.seed} on: " + ", ".join(f"{n} {w}" for w, n in figures.items()))
    return bool(figures["wrong"])


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=randrange(1_000_000_000))
    parser.add_argument("--schedules", type=int, help="so many; else one, told step by step")
    parser.add_argument("--jobs", type=int, default=1, help="in so many processes")
    parser.add_argument("--figures", action="store_true", help="all that is counted, as JSON")
    parser.add_argument("--until-wrong", action="store_true", help="stop at the first")
    parser.add_argument("--defect", choices=[*DEFECTS], help="with something planted that is wrong")
    parser.add_argument("--scenarios", type=int, help="with so many seeds each: what is seen")
    return parser.parse_args()


def _say(text: str) -> None:
    sys.stdout.write(text + "\n" * bool(text))
    sys.stdout.flush()


def _tell(seed: int) -> int:
    """Every step of one schedule, and the least of it that is wrong, too."""
    outcome = play(seed, _say)
    for what in outcome.wrong:
        _say(f"WRONG: {what}")
    if outcome.wrong:
        _say(f"so is {shortest(seed)}")
    return bool(outcome.wrong)


def _played(first: int, count: int, *, until_wrong: bool) -> Counter[str]:
    figures, began = Counter[str](), time.process_time()
    gc.freeze()  # what is imported stays, and is not looked at again and again
    gc.set_threshold(50_000)
    for seed in range(first, first + count):
        outcome = play(seed)
        figures.update({"schedules": 1, "steps": outcome.steps, "faults": len(outcome.struck)})
        figures.update(f"times {fault.kind}" for fault in outcome.struck)
        if outcome.wrong:
            figures["wrong"] += 1
            sys.stderr.write(f"--seed {seed}: {outcome.wrong[0]}\n")
            if until_wrong:
                break
    figures["seconds of processor time"] = round(time.process_time() - began)
    return figures


def _apart(first: int, count: int, jobs: int) -> Sequence[dict[str, Any]]:
    share = -(-count // jobs)
    running = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.simulation", "--figures"),
                *("--seed", str(first + n * share), "--schedules", str(share)),
            ],
            stdout=subprocess.PIPE,
        )
        for n in range(jobs)
    ]
    return [json.loads(each.communicate()[0]) for each in running]
