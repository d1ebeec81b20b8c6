"""``python -m tests.linearizability``: histories of concurrent clients, as many as you like.

Each is drawn from a seed and checked against the rules. ``--seed N --histories 1`` plays one again:
the clients ask for the same, though they may meet otherwise.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from rich.console import Console

from tests.linearizability.plan import draw
from tests.linearizability.playing import History, play
from tests.linearizability.stores import GROUNDS
from tests.services.campaign import Violation, campaign, spell_out

#: Calls, pairs of them that overlap, what happened to the store, calls that heard nothing, and
#: histories of which nothing can be said.
COUNTED = ("calls", "overlapping", "struck", "unheard", "undecided")


@dataclass(frozen=True, slots=True)
class Figures:
    """What became of one history of *store*."""

    store: str
    calls: int
    overlapping: int
    struck: int
    unheard: int
    undecided: bool
    violations: Sequence[Violation]

    @classmethod
    def of(cls, store: str, history: History) -> Figures:
        unheard, found = sum(each.lost for each in history.spoken), history.violations()
        return cls(
            *(store, len(history.spoken), history.overlapping, len(history.struck), unheard),
            *(found is None, found or []),
        )


def main() -> int:
    options = _options()
    seeds = range(options.seed, options.seed + options.histories)

    def rounds(console: Console) -> Iterator[Figures]:
        for store in options.store:
            with ExitStack() as stack:
                ground = GROUNDS[store](stack)
                for seed in seeds:
                    plan = draw(seed, strangers=ground.strangers)
                    figures = Figures.of(store, play(plan, ground))
                    spell_out(console, figures)
                    yield figures

    return campaign(rounds, _summary)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.linearizability")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--histories", type=int, default=200, help="so many on each store")
    parser.add_argument("--store", nargs="+", choices=GROUNDS, default=list(GROUNDS))
    return parser.parse_args()


def _summary(console: Console, done: list[Figures]) -> None:
    for store in dict.fromkeys(each.store for each in done):
        its = [each for each in done if each.store == store]
        count = {name: sum(getattr(each, name) for each in its) for name in COUNTED}
        told = ", ".join(f"{number} {name.replace('_', ' ')}" for name, number in count.items())
        wrong = sum(bool(each.violations) for each in its)
        console.print(f"{store}: {len(its)} histories, {told}, {wrong} with an anomaly")


if __name__ == "__main__":
    sys.exit(main())
