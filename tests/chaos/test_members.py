"""Short campaigns on the stores of several members: with some of them gone, and with too many.

Each has features of its own, so that all are met; longer ones draw them.

The broker that goes away is a way that is cut: it is the members that start again here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos.brokers import WayToRabbitMQ
from tests.chaos.members import MEMBERS
from tests.chaos.plan import draw, keys_of
from tests.chaos.round import play
from tests.chaos.stage import TTL, Setting, kinds_of
from tests.services.rabbitmq import RabbitMQServer
from tests.services.require import require

SERVERS = {"zookeeper": "zookeeper", "etcd": "etcd", "redlock": "redis"}
FEATURES = {
    "zookeeper": ["queue", "limits", "replace", "unique until start", "revoke", "lock inside"],
    "etcd": ["ordered", "readers", "debounce", "cooldown", "replace running", "keep"],
    "redlock": ["queue", "reschedule", "parents", "several keys", "skip", "unique until done"],
}


@pytest.fixture(scope="module")
def node() -> Iterator[RabbitMQServer]:
    require("rabbitmq")
    with RabbitMQServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.server("rabbitmq")
@pytest.mark.parametrize(
    "store",
    [pytest.param(name, marks=pytest.mark.server(SERVERS[name])) for name in sorted(MEMBERS)],
)
def test_what_was_promised_is_kept_while_members_fail(
    store: str, node: RabbitMQServer, tmp_path: Path
) -> None:
    require(SERVERS[store])
    # Three servers and what they hold up take more of a slow host than a lease of the others lasts:
    # then ten runs are lost in a row, and a task has no effect.
    setting = Setting(broker=WayToRabbitMQ(node), store=store, ttl=2 * TTL)

    schedule = draw(5, 14.0, kinds_of(setting), setting.ttl, keys=keys_of(FEATURES[store]))
    figures = play(schedule, setting, tmp_path)

    assert not figures.violations, "\n".join(map(str, figures.violations))
    assert figures.live >= 0.5 * figures.tasks > 25
    assert sum(count for kind, count in figures.struck.items() if "member" in kind) >= 2
