"""What ``python -m tests.simulation`` is asked for, and says."""

from __future__ import annotations

import argparse
import logging
import time
from collections import Counter

from tests.simulation.play import play


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.simulation")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--schedules", type=int, default=None)
    options = parser.parse_args()
    logging.disable(logging.CRITICAL)
    if options.schedules is None and options.seed is not None:
        outcome = play(options.seed, print)
        print("\n".join(outcome.wrong) or "nothing was wrong", outcome.steps, outcome.seconds)
        return bool(outcome.wrong)
    first = options.seed or 0
    bad = steps = 0
    began = time.perf_counter()
    struck: Counter[str] = Counter()
    for seed in range(first, first + options.schedules):
        outcome = play(seed)
        steps += outcome.steps
        struck.update(fault.kind for fault in outcome.struck)
        if outcome.wrong:
            bad += 1
            print(f"seed {seed}: {outcome.wrong[0][:300]}", flush=True)
    took = time.perf_counter() - began
    print(f"{options.schedules} schedules, {steps} steps, {bad} wrong, {took:.1f} s")
    for kind, count in struck.most_common():
        print(f"  {count} times {kind}")
    return bool(bad)
