"""``make chaos``: rounds of random faults on real servers and workers, until time is up.

Each round has a seed of its own, from which come its features, its servers and its schedule; it
prints them, and the command that plays it again: with fewer ``--features`` or ``--faults`` a part.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from rich.console import Console
from rich.table import Table

from tests.chaos.brokers import BROKERS
from tests.chaos.plan import Kind, draw, keys_of, mixture
from tests.chaos.round import Figures, play
from tests.chaos.stage import STORES, Setting, kinds_of
from tests.chaos.ways import FEATURES
from tests.services.campaign import campaign, in_a_folder, spell_out

#: Seconds for which nothing may be done as a round is worked off.
PATIENCE = 90.0
#: What a round takes at most beside its faults, when all waiting in it is in vain, and the machine
#: is not slow.
LONGEST = PATIENCE + 60.0


def main() -> int:
    options = _options()
    deadline = time.monotonic() + options.minutes * 60

    def rounds(console: Console) -> Iterator[Figures]:
        for seed in itertools.count(options.seed):
            number = seed - options.seed
            ends = time.monotonic() + options.seconds + LONGEST
            if number == options.rounds or (number and ends > deadline):
                break
            yield _round(console, seed, options)

    return campaign(rounds, _summary)


def _round(console: Console, seed: int, options: argparse.Namespace) -> Figures:
    setting = _setting(seed, options)
    kinds = tuple(kind for kind in kinds_of(setting) if kind in options.kinds)
    features = options.features or mixture(seed)
    schedule = draw(seed, options.seconds, kinds, setting.ttl, keys=keys_of(features))
    faults = options.faults or range(len(schedule.strikes))
    schedule = replace(schedule, strikes=tuple(schedule.strikes[number] for number in faults))
    on = f"--broker {setting.broker} --store {setting.store}"
    on += f" --ack {setting.ack} --pool {setting.pool}"
    console.print(f"[bold]{len(schedule.sendings)} tasks, {len(schedule.strikes)} faults")
    console.print(
        f"  again: python -m tests.chaos --rounds 1 --seed {seed} {on}"
        f" --seconds {options.seconds:g}"
        f" --features {' '.join(map(repr, features))}"
        f" --kinds {' '.join(repr(str(kind)) for kind in kinds)}"
        + (f" --faults {' '.join(map(str, options.faults))}" if options.faults else "")
    )
    for strike in schedule.strikes:
        console.print(f"  {strike}")
    (figures,) = in_a_folder(
        console,
        "dlock-chaos-",
        "the workers' logs and the database",
        lambda folder: [play(schedule, setting, folder, PATIENCE)],
    )
    spell_out(console, figures)
    console.print(f"  {figures}")
    return figures


def _setting(seed: int, options: argparse.Namespace) -> Setting:
    """Drawn from the seed, of what the options leave."""
    chance = random.Random(f"setting of {seed}")
    return Setting(**{name: chance.choice(getattr(options, name)) for name in CHOICES})


CHOICES = {
    "broker": BROKERS,
    "store": STORES,
    "ack": ("late", "early"),
    "pool": ("prefork", "threads"),
}


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--minutes", type=float, default=10.0, help="for all rounds together")
    parser.add_argument("--seconds", type=float, default=30.0, help="of faults in a round")
    parser.add_argument("--rounds", type=int, help="at most so many (default: until time is up)")
    for name, known in CHOICES.items():
        parser.add_argument(f"--{name}", nargs="+", choices=known, default=list(known))
    parser.add_argument("--features", nargs="+", choices=FEATURES, help="instead of those drawn")
    parser.add_argument("--kinds", nargs="+", type=Kind, default=list(Kind), help="of faults")
    parser.add_argument("--faults", nargs="+", type=int, help="of those that are drawn only these")
    return parser.parse_args()


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
