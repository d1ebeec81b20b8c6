"""``make chaos``: rounds of random faults on real servers and workers, until time is up.

Each round has a seed of its own, from which come its features, its servers and its schedule; it
prints them, and the command that plays it again. A round that broke a promise is made shorter.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from rich.console import Console
from rich.table import Table

from tests.chaos.brokers import BROKERS
from tests.chaos.plan import Kind, Schedule, draw, keys_of, mixture
from tests.chaos.round import Figures, play
from tests.chaos.shrink import Part, shrunk
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
            setting = _setting(seed, options)
            kinds = tuple(kind for kind in kinds_of(setting) if kind in options.kinds)
            match = Match(console, seed, setting, options.seconds, kinds)
            whole = match.whole(options.features or mixture(seed))
            part = replace(whole, faults=tuple(options.faults or whole.faults))
            figures = match.play(part)
            yield figures
            if figures.violations and options.shrink:
                match.shrink(part, figures, options.shrink)

    return campaign(rounds, _summary)


@dataclass(frozen=True, slots=True)
class Match:
    """The round of a seed, of which parts can be played."""

    console: Console
    seed: int
    setting: Setting
    seconds: float
    kinds: tuple[Kind, ...]

    def whole(self, features: Sequence[str]) -> Part:
        return Part(tuple(features), tuple(range(len(self._schedule(features).strikes))))

    def play(self, part: Part) -> Figures:
        whole, schedule = self.whole(part.features), self._schedule(part.features)
        schedule = replace(schedule, strikes=tuple(schedule.strikes[n] for n in part.faults))
        on = f"--broker {self.setting.broker} --store {self.setting.store}"
        on += f" --ack {self.setting.ack} --pool {self.setting.pool}"
        self.console.print(f"[bold]{len(schedule.sendings)} tasks, {len(schedule.strikes)} faults")
        self.console.print(
            f"  again: python -m tests.chaos --rounds 1 --seed {self.seed} {on}"
            f" --seconds {self.seconds:g}"
            f" --features {' '.join(map(repr, part.features))}"
            f" --kinds {' '.join(repr(str(kind)) for kind in self.kinds)}"
            + (f" --faults {' '.join(map(str, part.faults))}" if part != whole else "")
        )
        for strike in schedule.strikes:
            self.console.print(f"  {strike}")
        (figures,) = in_a_folder(
            self.console,
            "dlock-chaos-",
            "the workers' logs and the database",
            lambda folder: [play(schedule, self.setting, folder, PATIENCE)],
        )
        spell_out(self.console, figures)
        self.console.print(f"  {figures}")
        return figures

    def shrink(self, part: Part, figures: Figures, tries: int) -> None:
        """Play parts of it, for as long as they break one of the promises that it broke."""
        broken = {violation.check for violation in figures.violations}
        left = shrunk(part, lambda less: bool(broken & self._broken(less)), tries)
        self.console.print(f"[bold]what is left of it: {left}")

    def _broken(self, part: Part) -> set[StrEnum]:
        return {violation.check for violation in self.play(part).violations}

    def _schedule(self, features: Sequence[str]) -> Schedule:
        keys = keys_of(features)
        return draw(self.seed, self.seconds, self.kinds, self.setting.ttl, keys=keys)


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
    parser.add_argument("--shrink", type=int, default=0, help="play so many parts of what fails")
    return parser.parse_args()


def _summary(console: Console, rounds: list[Figures]) -> None:
    table = Table("what", "how many", title="The campaign", title_justify="left")
    struck = sum((figures.struck for figures in rounds), Counter[Kind]())
    table.add_row("schedules", str(len(rounds)))
    table.add_row("tasks", str(sum(figures.tasks for figures in rounds)))
    table.add_row("runs", str(sum(figures.runs for figures in rounds)))
    table.add_row("runs that held their lock to the end", str(sum(f.live for f in rounds)))
    table.add_row("answers of the store", str(sum(figures.spoken for figures in rounds)))
    table.add_row("operations replayed", str(sum(f.replayed.operations for f in rounds)))
    table.add_row("keys replayed", str(sum(f.replayed.keys for f in rounds)))
    table.add_row("answers that cannot be replayed", str(sum(f.replayed.aside for f in rounds)))
    table.add_row("tasks passed over after a fault", str(sum(f.passed for f in rounds)))
    table.add_row("messages that the broker lost", str(sum(f.sent_again for f in rounds)))
    for kind, count in sorted(struck.items()):
        table.add_row(kind, str(count))
    table.add_row("violations", str(sum(len(figures.violations) for figures in rounds)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
