"""A worker is killed in a body, over every broker: what runs again is what its broker delivers
again, and whatever became of the killed task, those behind it come to their turn.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.services.brokers import close, left
from tests.services.lab import Lab
from tests.services.redelivery import deliver_again
from tests.services.sites import Site
from tests.services.turns import done, held, nothing_is_left, parked

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Call to deprecated setex:DeprecationWarning"),
]

AGAIN, LOST = [0, 0, 1, 2], [0, 1, 2]


@pytest.fixture
def lab(request: pytest.FixtureRequest, tmp_path: Path, site: Site) -> Iterator[Lab]:
    lab = site.lab(request, tmp_path, policy="queue", ttl=3.0)
    yield lab
    close(lab.app)


@pytest.mark.parametrize(
    ("site", "starts"),
    [
        Site("rabbitmq", "prefork", late=True, kept="sqlite").param(AGAIN),
        Site("rabbitmq", "gevent", late=False, kept="redis").param(LOST),
        Site("quorum", "threads", late=True, kept="redis").param(AGAIN),
        Site("redis", "gevent", late=True, kept="sqlite").param(AGAIN),
        Site("redis", "threads", late=False, kept="sqlite").param(LOST),
        # It removes a message as it hands it out, whatever is acknowledged later
        Site("filesystem", "prefork", late=True, kept="sqlite").param(LOST),
    ],
)
def test_a_killed_body_and_the_messages_that_wait_for_its_key(
    lab: Lab, site: Site, starts: list[int]
) -> None:
    with lab.worker(site.pool, concurrency=2) as first:
        # Given a body, two messages that wait for it, and another worker
        held(lab, "42")
        with lab.worker(site.pool, concurrency=2) as second:
            waiting = []
            for number in (1, 2):  # of two workers each may have one otherwise, and be the first
                waiting.append(lab.app.tasks["apply"].delay("42", number))
                parked(lab, "42", number)
            # When the body's worker is killed
            first.kill()
            lab.go("42")
            if site.broker == "redis":
                deliver_again(lab.app)
            # Then it runs again, before the others, where its broker still has it
            assert done(waiting) == [1, 2]
            assert [entry["number"] for entry in lab.journal.read("start")] == starts
            assert [entry["number"] for entry in lab.journal.read("end")] == starts[1:]
            nothing_is_left(lab, "42")
            second.stop()
    assert left(lab.app) == 0
