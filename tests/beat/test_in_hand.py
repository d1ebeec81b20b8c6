"""A leader that fails with a tick in its hand: it is sent by the next one, under the same id.

A locked task drops the copy. A plain one runs twice where both have sent it, and it was told.
"""

from __future__ import annotations

import pytest

from tests.beat.conftest import MakeCrew
from tests.beat.crew import PATIENCE, Crew
from tests.beat.evidence import instant, repeats
from tests.beat.ways import KINDS
from tests.services.until import until

pytestmark = [pytest.mark.slow, pytest.mark.once, pytest.mark.server("redis")]

TTL = 2.0

REDIS = next(kind for kind in KINDS if kind.name == "redis")


@pytest.mark.parametrize(("entry", "copies"), [("every 40 s", 1), ("every 60 s", 2)])
def test_what_a_leader_had_in_its_hand_is_sent_by_the_next(
    make_crew: MakeCrew, entry: str, copies: int
) -> None:
    crew, _, runs = make_crew(REDIS, TTL)
    crew.new_leader()
    crew.settle()
    unsent = killed(crew, "before", entry)
    sent = killed(crew, "after", entry)
    late = paused(crew, entry)

    broken = crew.finish(runs)  # of a locked task's copies each is one too many
    assert not broken, "\n".join(map(str, broken))
    assert times(crew, unsent) >= 1
    assert times(crew, sent) >= copies
    assert times(crew, late) >= copies


def killed(crew: Crew, when: str, entry: str) -> str:
    """The id of what it had in its hand *when* it published."""
    leader, held = crew.hold(when, entry)
    leader.kill()
    is_repeated(crew, held)
    leader.start()
    return str(held["id"])


def paused(crew: Crew, entry: str) -> str:
    """It sends what it has in its hand when it wakes up."""
    leader, held = crew.hold("before", entry)
    began = crew.pause(leader)
    is_repeated(crew, held)
    crew.let_go(leader)
    crew.resume(leader, began)
    crew.journal.wait_for("published", id=held["id"], beat=leader.name)
    return str(held["id"])


def is_repeated(crew: Crew, held: dict[str, str]) -> None:
    tick = (held["entry"], instant(held["due"]))
    until(f"{tick} is sent again", lambda: tick in repeats(crew.journal), PATIENCE)
    crew.goes_on()


def times(crew: Crew, tick: str) -> int:
    """How often it ran."""
    return len(crew.journal.read("ran", id=tick))
