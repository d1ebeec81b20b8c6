"""A burst on a key as users have it: all of it in the broker when the workers start, and other
messages beside it.

A clock that starts when all is parked measures something that nobody has. Every contestant checks
that each of its messages has run once.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path

from rich.console import Console
from rich.table import Table

from scripts.benchmarks.ideal import one_at_a_time, rate_by_turns, rate_in_order
from scripts.benchmarks.measure import percentile, take_turns
from scripts.benchmarks.notes import Span
from scripts.benchmarks.stage import Stage, staged

#: How our tasks wait.
WAYS = ("queued", "published")
#: The least of each, with nothing of ours.
FLOORS = {"queued": "floor", "published": "floor_published"}
BESIDE = (*FLOORS.values(), *WAYS)
SLOTS = 4
#: So many messages of a worker are unacknowledged, as Celery has it by default.
PREFETCHED = 4 * SLOTS
ROUNDS = 5
#: Of what is a table of single hand-overs, or of one place.
FEW_ROUNDS = 2

#: Of one key first, then plain ones.
FEW, MANY = 60, 600
#: One key's burst, by the seconds of a body.
BURSTS = {0.0: 1000, 0.005: 400, 0.02: 150}
BY_HAND = {0.005: 100, 0.02: 50}
FOREIGN = (0, 1_000, 10_000)
HOT, QUIET = 1500, 100
ZIPF = 1000
#: Seconds of an open loop, and the share of the plain rate that it sends at.
OPEN, LOAD = 4.0, 0.5
BODY = 0.005


def show_bursts(console: Console, folder: Path, url: str) -> None:
    """All of them, each as its own table."""
    places = {way: partial(last_place, folder, url, way) for way in WAYS}
    title = f"{FEW} of one key, then {MANY} plain: the last of the {FEW} ends at place"
    _table(console, title, take_turns(places, FEW_ROUNDS))
    for seconds, tasks in BURSTS.items():
        _bursts(console, folder, url, seconds, tasks)
    alone = publish_to_start(folder, url)
    for foreign in FOREIGN:
        _handovers(console, folder, url, foreign, alone)
    title = f"{QUIET} quiet keys behind {HOT} of a hot one: ended before the last of them"
    _table(console, title, {way: [hot_before_quiet(folder, url, way)] for way in WAYS})
    _price(console, folder, url)
    _open_loop(console, folder, url)


def _table(console: Console, title: str, found: Mapping[str, Sequence[float]]) -> None:
    table = Table("", "median", "all", title=title, title_justify="left", min_width=76)
    for name, values in found.items():
        every = " ".join(f"{value:,.2f}".rstrip("0").rstrip(".") for value in values)
        table.add_row(name, f"{percentile(values, 0.5):,.2f}", every)
    console.print(table)


def drained(
    folder: Path, url: str, calls: Sequence[tuple[str, str, float]], slots: int
) -> list[Span]:
    """All *calls* (a task, a key, a body's seconds) are in the broker; then a worker starts."""
    with staged(folder, url) as stage:
        for name, key, seconds in calls:
            stage.send(name, key, seconds)
        with stage.worker("prefork", concurrency=slots):
            return _once(stage, len(calls), Counter(key for _, key, _ in calls))


def _once(stage: Stage, count: int, keys: Counter[str]) -> list[Span]:
    spans = stage.notes.wait_for(count, timeout=300)
    if Counter(span.key for span in spans) != keys:
        raise AssertionError("not every message has run once")
    return spans


def rate(spans: Sequence[Span]) -> float:
    """Bodies a second, from the start of the first to the end of the last."""
    return len(spans) / (max(span.ended for span in spans) - spans[0].began)


def last_place(folder: Path, url: str, way: str) -> float:
    calls = [(way, "hot", BODY)] * FEW + [("plain", "other", BODY)] * MANY
    ended = sorted(drained(folder, url, calls, SLOTS), key=lambda span: span.ended)
    return 1 + max(place for place, span in enumerate(ended) if span.key == "hot")


def _bursts(console: Console, folder: Path, url: str, seconds: float, tasks: int) -> None:
    """Each as a share of one serial process, and ours of the least that does the same steps; and
    the longest time that the key was idle.
    """
    idle: dict[str, float] = {}

    def burst(name: str, count: int, slots: int = SLOTS) -> float:
        spans = drained(folder, url, [(name, "hot", seconds)] * count, slots)
        gaps = [after.began - before.ended for before, after in pairwise(spans)]
        idle[name] = max(idle.get(name, 0.0), *gaps)
        return rate(spans)

    contestants = {"plain": partial(burst, "plain", tasks, 1)}
    contestants |= {name: partial(burst, name, tasks) for name in BESIDE}
    if seconds in BY_HAND:
        contestants["by_hand"] = partial(burst, "by_hand", BY_HAND[seconds])
    found = take_turns(contestants, ROUNDS)
    title = f"Burst of {tasks} on one key, {seconds * 1000:g} ms: share of serial"
    _table(console, title, _shares(found))
    of_floor = {
        f"{way} of {floor}": _ratios(found[way], found[floor]) for way, floor in FLOORS.items()
    }
    _table(console, "the same: share of the floor, which is the way of each and no lock", of_floor)
    title = "the key idle during its own burst, longest, in seconds"
    _table(console, title, {name: [idle[name]] for name in found})


def _shares(found: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Of the plain ones."""
    plain = found["plain"]
    return {name: _ratios(rates, plain) for name, rates in found.items() if name != "plain"}


def _ratios(rates: Sequence[float], whole: Sequence[float]) -> list[float]:
    """Round by round."""
    return [rate / of for rate, of in zip(rates, whole, strict=True)]


def publish_to_start(folder: Path, url: str) -> float:
    """Median milliseconds of a plain task, with nothing else in the broker or in the worker."""
    with staged(folder, url) as stage, stage.worker("prefork", concurrency=SLOTS):
        for number in range(FEW):
            stage.send("plain", "other", 0.0, time.monotonic())
            stage.notes.wait_for(number + 1)
        spans = _once(stage, FEW, Counter({"other": FEW}))
    return percentile([1000 * (span.began - span.sent) for span in spans], 0.5)


def _handovers(console: Console, folder: Path, url: str, foreign: int, alone: float) -> None:
    """From the end of a body of a key to the start of its next, while other messages are there.

    Beside it that of a plain task *alone*, from its publishing to its start.
    """

    def gaps(way: str) -> list[float]:
        calls = [(way, "hot", BODY)] * FEW + [("plain", "other", 0.0)] * foreign
        spans = drained(folder, url, calls, SLOTS)
        hot = [span for span in spans if span.key == "hot"]
        return [1000 * (after.began - before.ended) for before, after in pairwise(hot)]

    title = f"Hand-over beside {foreign:,} other messages"
    columns = ("", "median ms", "p99 ms", f"median ÷ {alone:.1f} ms of a plain one")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    for way in WAYS:
        found = [gap for _ in range(FEW_ROUNDS) for gap in gaps(way)]
        median, slow = (percentile(found, share) for share in (0.5, 0.99))
        table.add_row(way, f"{median:.1f}", f"{slow:.1f}", f"{median / alone:.2f}")
    console.print(table)


def hot_before_quiet(folder: Path, url: str, way: str) -> float:
    """How many of the hot ones have ended when the last of the quiet ones has."""
    calls = [(way, "hot", BODY)] * HOT + [(way, f"quiet-{n}", BODY) for n in range(QUIET)]
    spans = drained(folder, url, calls, SLOTS)
    last = max(span.ended for span in spans if span.key != "hot")
    return sum(span.ended < last for span in spans if span.key == "hot")


def zipf(count: int) -> list[str]:
    """Keys of a thousand, the first of them as often as all those far behind; always the same."""
    shares = [1 / rank for rank in range(1, 1001)]
    drawn = random.Random(1000).choices(range(1000), weights=shares, k=count)
    return [f"key-{number}" for number in drawn]


def _price(console: Console, folder: Path, url: str) -> None:
    keys = zipf(ZIPF)

    def drain(name: str) -> float:
        return rate(drained(folder, url, [(name, key, BODY) for key in keys], SLOTS))

    found = take_turns({name: partial(drain, name) for name in ("plain", *BESIDE)}, ROUNDS)
    shares = _shares(found)
    # Each task as long in its slot as a plain one, of which all slots are full.
    shares["ideal: whoever's key is free"] = [rate_in_order(keys, SLOTS, float(SLOTS))]
    for way in WAYS:
        ideal = rate_by_turns(keys, SLOTS, float(SLOTS), PREFETCHED, at_publish=way == "published")
        shares[f"{way}, were it for nothing"] = [ideal]
    _table(console, f"{ZIPF} tasks on Zipf keys, 5 ms: share of plain", shares)


def _open_loop(console: Console, folder: Path, url: str) -> None:
    """End to end, at half of the rate at which plain ones are drained."""
    calls = [("plain", "other", BODY)] * 400
    pace = LOAD * rate(drained(folder, url, calls, SLOTS))
    keys = zipf(int(OPEN * pace))

    def sent(name: str) -> list[Span]:
        with staged(folder, url) as stage, stage.worker("prefork", concurrency=SLOTS):
            began = time.monotonic()
            for number, key in enumerate(keys):
                time.sleep(max(0.0, began + number / pace - time.monotonic()))
                stage.send(name, key, BODY, time.monotonic())
            return _once(stage, len(keys), Counter(keys))

    turns = take_turns({name: partial(sent, name) for name in ("plain", *BESIDE)}, ROUNDS)
    found = {name: [_ends(map(_took, spans)) for spans in rounds] for name, rounds in turns.items()}
    found["plain, had each waited for its key"] = [
        _ends(one_at_a_time(spans)) for spans in turns["plain"]
    ]
    title = f"Open loop of {pace:.0f} a second on Zipf keys: published to ended, in ms"
    table = Table("", "median", "p99", "÷ plain", title=title, title_justify="left", min_width=76)
    for name, rounds in found.items():
        figures, ratios = [], []
        for n in (0, 1):
            figures.append(percentile([ends[n] for ends in rounds], 0.5))
            pairs = zip(rounds, found["plain"], strict=True)
            ratios.append(percentile([ends[n] / plain[n] for ends, plain in pairs], 0.5))
        table.add_row(name, *(f"{x:.1f}" for x in figures), " / ".join(f"{x:.2f}" for x in ratios))
    console.print(table)


def _took(span: Span) -> float:
    return span.ended - span.sent


def _ends(seconds: Iterable[float]) -> tuple[float, float]:
    """Median and p99 in milliseconds."""
    values = [1000 * value for value in seconds]
    return percentile(values, 0.5), percentile(values, 0.99)
