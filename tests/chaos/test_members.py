"""Short campaigns on the stores of several members: with some of them gone, and with too many."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.members import MEMBERS
from tests.chaos.plan import draw
from tests.chaos.round import play
from tests.chaos.stage import TTL, Setting, kinds_of
from tests.services.require import require

SERVERS = {"zookeeper": "zookeeper", "etcd": "etcd", "redlock": "redis"}


@pytest.mark.slow
@pytest.mark.server("rabbitmq")
@pytest.mark.parametrize(
    "store",
    [pytest.param(name, marks=pytest.mark.server(SERVERS[name])) for name in sorted(MEMBERS)],
)
def test_what_was_promised_is_kept_while_members_fail(store: str, tmp_path: Path) -> None:
    for server in ("rabbitmq", SERVERS[store]):
        require(server)
    setting = Setting(broker="rabbitmq", store=store)

    figures = play(draw(5, 14.0, kinds_of(setting), TTL), setting, tmp_path)

    assert not figures.violations, "\n".join(map(str, figures.violations))
    assert figures.live >= 0.9 * figures.tasks > 50
    assert sum(count for kind, count in figures.struck.items() if "member" in kind) >= 2
