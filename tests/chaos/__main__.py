"""``make chaos``: rounds of random faults on real servers and workers, until time is up.

Each round has a seed of its own and prints its schedule, and the command that plays it again.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from rich.console import Console
from rich.table import Table

from tests.chaos.brokers import BROKERS
from tests.chaos.plan import Kind, Schedule, draw
from tests.chaos.round import Figures, play
from tests.chaos.stage import STORES, TTL, Setting, kinds_of
from tests.services.campaign import campaign, in_a_folder, spell_out

#: Seconds of faults in a round, and for how long nothing may be done as it is worked off.
ROUND = 30.0
PATIENCE = 90.0
#: What a round takes at most, when all waiting in it is in vain and the machine is not slow.
LONGEST = ROUND + PATIENCE + 60.0


def main() -> int:
    options = _options()
    chosen = itertools.product(options.broker, options.store, options.ack)
    settings = itertools.starmap(Setting, chosen)
    deadline = time.monotonic() + options.minutes * 60

    def rounds(console: Console) -> Iterator[Figures]:
        for number, setting in enumerate(itertools.cycle(settings)):
            if number == options.rounds or (number and time.monotonic() + LONGEST > deadline):
                break
            seconds = min(ROUND, options.minutes * 36)
            schedule = draw(options.seed + number, seconds, kinds_of(setting), TTL)
            yield _round(console, schedule, setting, options.minutes)

    return campaign(rounds, _summary)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=10.0, help="for all rounds together")
    parser.add_argument("--rounds", type=int, help="at most so many (default: until time is up)")
    choices = {"broker": BROKERS, "store": STORES, "ack": ("late", "early")}
    for name, known in choices.items():
        default = ["redis"] if name == "broker" else list(known)
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=default)
    return parser.parse_args()


def _round(console: Console, schedule: Schedule, setting: Setting, minutes: float) -> Figures:
    on = f"--broker {setting.broker} --store {setting.store} --ack {setting.ack}"
    on += f" --minutes {minutes:g}"  # a round of a short campaign is shorter
    console.print(f"[bold]{len(schedule.sendings)} tasks, {len(schedule.strikes)} faults[/]")
    console.print(f"  again: python -m tests.chaos --seed {schedule.seed} {on} --rounds 1")
    for strike in schedule.strikes:
        console.print(f"  {strike}")
    holds = "the workers' logs and the database"
    (figures,) = in_a_folder(
        console,
        "dlock-chaos-",
        holds,
        lambda folder: [play(schedule, setting, folder, PATIENCE)],
    )
    spell_out(console, figures)
    console.print(f"  {figures}")
    return figures


def _summary(console: Console, rounds: list[Figures]) -> None:
    table = Table("what", "how many", title="The campaign", title_justify="left")
    struck = sum((figures.struck for figures in rounds), Counter[Kind]())
    table.add_row("schedules", str(len(rounds)))
    table.add_row("tasks", str(sum(figures.tasks for figures in rounds)))
    table.add_row("runs", str(sum(figures.runs for figures in rounds)))
    table.add_row("runs that held their lock to the end", str(sum(f.live for f in rounds)))
    table.add_row("tasks passed over after a fault", str(sum(f.passed for f in rounds)))
    table.add_row("messages that the broker lost", str(sum(f.sent_again for f in rounds)))
    for kind, count in sorted(struck.items()):
        table.add_row(kind, str(count))
    table.add_row("violations", str(sum(len(figures.violations) for figures in rounds)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
