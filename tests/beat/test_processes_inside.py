"""Two beats around another scheduler: the leader is killed, and every tick is run once.

Around django-celery-beat's rows in a file of SQLite, and around RedBeat's keys in a Redis.
"""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.beat.conftest import MakeCrew
from tests.beat.entries import ENTRIES
from tests.beat.test_failover import killed
from tests.beat.ways import KINDS
from tests.services.django_rows import rows_in
from tests.services.redis import RedisServer

pytestmark = [pytest.mark.slow, pytest.mark.once]

TTL = 2.0

STORES = {kind.name: kind for kind in KINDS}

#: Neither of the two is asked for suns.
OFTEN = tuple(entry for entry in ENTRIES if not entry.solar)


def test_around_the_rows_of_django(make_crew: MakeCrew, tmp_path: Path) -> None:
    with rows_in(tmp_path):
        is_followed(make_crew, "sqlite", dlock_beat_scheduler="django")


@pytest.mark.server("redis")
def test_around_redbeat(make_crew: MakeCrew, redis_server: RedisServer) -> None:
    inside = {
        "dlock_beat_scheduler": "redbeat.RedBeatScheduler",
        "redbeat_redis_url": redis_server.url,
        "redbeat_key_prefix": f"{uuid.uuid4().hex}:",
    }
    is_followed(make_crew, "redis", **inside)


def is_followed(make_crew: MakeCrew, store: str, **inside: Any) -> None:
    """Who leads and is killed is followed by the other one, and stands by when it is back."""
    crew, _, runs = make_crew(STORES[store], TTL, beats=2, entries=OFTEN, **inside)
    first = crew.new_leader()
    crew.settle()
    killed(crew, first)
    first.start()
    crew.goes_on()

    broken = crew.finish(runs)
    assert not broken, "\n".join(map(str, broken))
    assert not any(beat.has_written for beat in crew.beats)
