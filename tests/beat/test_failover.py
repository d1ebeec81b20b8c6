"""Three beats: the leader is killed, paused, cut off, and loses its store; the ticks go on.

Over each kind of store. What was run is checked at the end, all of it.
"""

from __future__ import annotations

import time
from typing import Any

import pytest

from tests.beat.conftest import MakeCrew
from tests.beat.crew import PATIENCE, Crew
from tests.beat.evidence import Term, terms
from tests.beat.ways import EACH_KIND, Kind, Ways
from tests.services.beat import Beat
from tests.services.until import until

pytestmark = [pytest.mark.slow, pytest.mark.once]

#: Seconds, a lease that etcd and ZooKeeper can keep.
TTL = 3.0

Record = Any  # pytest's record_property


@pytest.mark.parametrize("kind", EACH_KIND)
def test_a_leader_that_fails_is_followed_and_every_tick_is_run_once(
    make_crew: MakeCrew, kind: Kind, record_property: Record
) -> None:
    crew, ways, runs = make_crew(kind, TTL)
    first = crew.new_leader()
    crew.settle()
    only_leaders_have_written(crew)

    second, took = killed(crew, first)
    record_property("took over from the killed after", took)
    print(f"{kind.name}: took over after {took:.2f} s, the lease is {TTL} s")  # noqa: T201
    first.start()
    third = paused(crew, second)
    if kind.server:
        cut_off(crew, ways, third)
    store_away(crew, ways)

    broken = crew.finish(runs)
    assert not broken, "\n".join(map(str, broken))


def killed(crew: Crew, leader: Beat) -> tuple[Beat, float]:
    """Who leads next, and after how long."""
    leader.kill()
    at = time.monotonic()
    successor = crew.new_leader(leader)
    took = time.monotonic() - at
    crew.goes_on()
    return successor, took


def paused(crew: Crew, leader: Beat) -> Beat:
    """It wakes up, and does not lead, nor does it write what it still knows."""
    began = crew.pause(leader)
    successor = crew.new_leader(leader)
    crew.goes_on()
    written = leader.written
    before = len(leads(crew, leader))
    crew.resume(leader, began)
    steps_down(crew, leader, before)
    assert leader.written == written or len(leads(crew, leader)) > before  # when it leads again
    crew.goes_on()
    return successor


def cut_off(crew: Crew, ways: Ways, leader: Beat) -> None:
    """It stops before the next one begins; when it can reach the store again it stands by."""
    before = len(leads(crew, leader))
    with ways.cut(crew.beats.index(leader)):
        crew.new_leader(leader)
        steps_down(crew, leader, before)
        crew.goes_on()
    crew.goes_on()


def store_away(crew: Crew, ways: Ways) -> None:
    """They stand by until it is there again, and are the same processes."""
    before = [beat.pid for beat in crew.beats]
    with ways.away():
        until("nobody leads", lambda: crew.leader() is None, PATIENCE)
    crew.goes_on()
    assert [beat.pid for beat in crew.beats] == before
    assert all(beat.runs for beat in crew.beats)


def only_leaders_have_written(crew: Crew) -> None:
    """Whoever stands by has no schedule file."""
    written = {beat.name for beat in crew.beats if beat.has_written}
    assert written <= {term.beat for term in terms(crew.journal)}
    assert written


def leads(crew: Crew, beat: Beat) -> list[Term]:
    """How often it has led, since it was started."""
    return [term for term in terms(crew.journal) if term.pid == beat.pid]


def steps_down(crew: Crew, leader: Beat, number: int) -> None:
    """Wait for the end of the lead that was its *number*-th."""

    def ended() -> bool:
        return not leads(crew, leader)[number - 1].leads

    until(f"{leader.name} steps down", ended, PATIENCE)
