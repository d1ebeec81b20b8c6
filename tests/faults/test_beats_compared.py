"""One fault of ``python -m scripts.benchmarks beats``: the beat that leads is killed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scripts.benchmarks.beat_counts import Counts
from scripts.benchmarks.beat_faults import FAULTS
from scripts.benchmarks.beat_site import Contestant, Site, ticks_worker
from scripts.benchmarks.beats import OURS, PLAIN, RETIMED, judge, settle, window_from
from tests.services.redis import RedisServer
from tests.services.until import until

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow, pytest.mark.once]

KILLED = FAULTS[0]


@contextmanager
def settled(folder: Path, who: Contestant, broker: RedisServer) -> Iterator[Site]:
    site = Site(folder / "site", who, broker)
    with ticks_worker(folder, broker), site.opened():
        settle(site, KILLED)
        yield site


def goes_on(site: Site) -> None:
    """Strike, and wait until the one that stood by sends."""
    KILLED.strike(site)
    until("the second sends", lambda: any(tick.beat == "second" for tick in site.ticks()), 120)


def test_dlock_says_what_it_leaves_out_and_sends_again(
    tmp_path: Path, own_redis_server: RedisServer
) -> None:
    with settled(tmp_path, OURS, own_redis_server) as site:
        began = time.monotonic()
        goes_on(site)
        window = window_from(began, time.monotonic() - began)

        def counts() -> Counts:
            return judge(site, window).counts

        def events(text: str) -> int:
            return sum(beat.log.count(text) for beat in (site.first, site.second))

        until("ticks were due", lambda: counts().due, 120)
        until(
            "what is lost was left out", lambda: not counts().lost or events(" skipped its "), 120
        )
        assert counts().doubled <= events("is sent again for")
        assert site.ends == 0


def test_redbeat_takes_over(tmp_path: Path, own_redis_server: RedisServer) -> None:
    with settled(tmp_path, RETIMED, own_redis_server) as site:
        goes_on(site)


def test_two_plain_beats_double(tmp_path: Path, own_redis_server: RedisServer) -> None:
    with settled(tmp_path, PLAIN, own_redis_server) as site:
        window = window_from(time.monotonic(), 3600.0)
        until("a tick is doubled", lambda: judge(site, window).counts.doubled)
