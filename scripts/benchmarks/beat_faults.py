"""What is done to two beats, of which the first leads where one does."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from scripts.benchmarks.beat_site import Site

#: Seconds: of every lock that is set to anything, and for how long a fault lasts that ends.
TTL = 3
LASTS = 6.0

#: Seconds for which the store is gone when it is restarted.
RESTARTS = 2.0


def killed(site: Site) -> None:
    site.first.end(signal.SIGKILL)


def stopped(site: Site) -> None:
    site.first.end(signal.SIGTERM)


def paused(site: Site) -> None:
    site.first.pause()
    time.sleep(LASTS)
    site.first.resume()


def cut_off(site: Site) -> None:
    site.first.cut()
    time.sleep(LASTS)
    site.heal(site.first)


def restarted(site: Site) -> None:
    site.store.kill()
    time.sleep(RESTARTS)
    site.store.start()


def away_at_start(site: Site) -> None:
    site.second.cut()
    site.start(site.second, ready=False)
    time.sleep(LASTS)
    site.heal(site.second)


@dataclass(frozen=True, slots=True)
class Fault:
    """*strike* does it. The second beat is *there* before, or comes with the fault."""

    name: str
    strike: Callable[[Site], None]
    there: bool = True


FAULTS = (
    Fault("the one that leads is killed (SIGKILL)", killed),
    Fault("it is stopped (SIGTERM)", stopped),
    Fault(f"it is paused for {LASTS:g} s (SIGSTOP)", paused),
    Fault(f"its host is cut off from Redis for {LASTS:g} s", cut_off),
    Fault(f"Redis is restarted with its data, {RESTARTS:g} s", restarted),
    Fault(f"the second starts without Redis, for {LASTS:g} s", away_at_start, there=False),
)
