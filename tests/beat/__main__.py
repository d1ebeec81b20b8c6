"""``python -m tests.beat``: random faults on real beats, as many schedules as you like.

Each prints its seed; ``--seed N --rounds 1`` plays one again.
"""

from __future__ import annotations

import argparse
import random
import statistics
import sys
from collections import Counter
from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table

from tests.beat.campaign import LENGTH, STORES, TTL, Figures, play
from tests.beat.plan import Kind, draw
from tests.services.campaign import campaign, in_a_folder, spell_out


def main() -> int:
    options = _options()
    seeds = range(options.seed, options.seed + options.rounds)

    def rounds(console: Console) -> Iterator[Figures]:
        for first in range(0, len(seeds), options.at_once):
            yield from _batch(console, seeds[first : first + options.at_once], options.store)

    return campaign(rounds, _summary)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.beat")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--store", choices=STORES, default="redis", help="where the locks are")
    parser.add_argument("--at-once", type=int, default=6, help="so many groups side by side")
    return parser.parse_args()


def _batch(console: Console, seeds: range, store: str) -> Sequence[Figures]:
    holds = "the journals and logs"
    played = in_a_folder(
        console, "dlock-beat-", holds, lambda folder: play(folder, seeds, STORES[store])
    )
    for figures in played:
        console.print(str(figures))
        if figures.violations:
            for strike in draw(figures.seed, LENGTH, TTL):
                console.print(f"    {strike}")
        spell_out(console, figures)
    return played


def _summary(console: Console, done: list[Figures]) -> None:
    table = Table("what", "how many", title="The campaign", title_justify="left")
    table.add_row("schedules", str(len(done)))
    table.add_row("ticks", str(sum(figures.ran for figures in done)))
    table.add_row("leads", str(sum(figures.leads for figures in done)))
    table.add_row("ticks sent again", str(sum(figures.repeated for figures in done)))
    table.add_row("plain tasks that ran twice", str(sum(figures.twice for figures in done)))
    for kind, count in sorted(sum((f.struck for f in done), Counter[Kind]()).items()):
        table.add_row(kind, str(count))
    for kind in (Kind.KILL, Kind.STOP):
        took = [seconds for figures in done for seconds in figures.took[kind]]
        if took:
            middle = (
                f"after {statistics.median(took):.2f} s, at most {max(took):.2f} s ({len(took)})"
            )
            table.add_row(f"{kind} that leads, and nothing else: the next one leads", middle)
    table.add_row("violations", str(sum(len(figures.violations) for figures in done)))
    console.print(table)


if __name__ == "__main__":
    sys.exit(main())
