"""RedBeat inside: its entries in Redis are sent once, whoever leads, and Redis says when next."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from celery import signals
from celery.beat import Service
from celery.schedules import crontab, schedule
from redbeat import RedBeatSchedulerEntry
from redbeat.schedules import rrule

from celery_dlock.beat.scheduler import LeaderScheduler
from celery_dlock.core.events import Acquired
from tests.beat.inside import at, dies, refuses, run, take_over
from tests.services.beats import START, Beats, beats
from tests.services.redis import RedisServer

pytestmark = [pytest.mark.once, pytest.mark.server("redis")]

Make = Callable[..., Any]

TEN = {"ten": 10.0}


@pytest.fixture
def make(tmp_path: Path, request: pytest.FixtureRequest) -> Make:
    """Three beats around keys of their own in a Redis; every tick is made up for."""

    @contextmanager
    def make(
        entries: dict[str, Any], server: RedisServer | None = None, **config: Any
    ) -> Iterator[Beats]:
        server = server or request.getfixturevalue("redis_server")
        settings = {
            "dlock_beat_scheduler": "redbeat.RedBeatScheduler",
            "redbeat_redis_url": server.url,
            "redbeat_key_prefix": f"{uuid.uuid4().hex}:",
            **config,
        }
        with beats(tmp_path, entries, **settings) as of:
            yield of
            if hasattr(of.app, "redbeat_redis"):
                of.app.redbeat_redis.close()

    return make


def entry(of: Beats, name: str, when: Any, **more: Any) -> Any:
    """An entry as people save it while beats run."""
    made = RedBeatSchedulerEntry(name, name, when, app=of.app, **more)
    return made.save()


def in_redis(of: Beats, name: str) -> tuple[datetime, datetime]:
    """When Redis says that the entry was run last, and when it is due."""
    key = of.app.redbeat_conf.key_prefix + name
    last = RedBeatSchedulerEntry.load_meta(key, app=of.app)["last_run_at"]
    score = of.app.redbeat_redis.zscore(of.app.redbeat_conf.schedule_key, key)
    return last, datetime.fromtimestamp(score, UTC)


def test_an_interval_that_is_sent_late_stays_on_the_grid(make: Make) -> None:
    with make(TEN) as of:
        of.tick_all()
        entry(of, "dynamic", schedule(20, app=of.app))
        for _ in range(6):
            of.advance(7)
            of.tick_all()

        assert of.dues("ten") == [at(10), at(20), at(30), at(40)]
        assert of.dues("dynamic") == [at(20), at(40)]
        assert {sent.beat for sent in of.sent} == {0}
        assert in_redis(of, "ten") == (at(40), at(50))
        assert in_redis(of, "dynamic") == (at(40), at(60))


def test_who_was_late_looks_again_when_the_next_one_is_due(make: Make) -> None:
    with make(TEN) as of:
        of.tick(0)
        of.advance(14)

        scheduler: Any = of.beats[0]._scheduler
        assert scheduler.tick() == pytest.approx(3, abs=0.01)


@pytest.mark.parametrize("ends", [dies, refuses])
@pytest.mark.parametrize("point", ["before it is published", "after it was published"])
def test_a_claimed_tick_is_sent_at_once(make: Make, point: str, ends: Callable[[], None]) -> None:
    with make({**TEN, "rarely": 3600.0}) as of:
        of.tick(0)
        of.advance(7)
        of.faults[point] = ends
        of.tick(0)
        assert in_redis(of, "ten")[0] == START
        of.advance(1)
        of.tick(1)

        again = [at(10)] * (point == "after it was published")
        assert of.dues("ten") == [*again, at(10)]
        assert len({sent.task_id for sent in of.sent}) == 1
        run(of, until=35, number=1)
        assert in_redis(of, "ten") == (at(30), at(40))
        take_over(of, 2)
        assert of.dues("ten") == [*again, at(10), at(20), at(30)]


def test_a_leader_that_was_deposed_neither_sends_nor_sets_an_entry_on(make: Make) -> None:
    with make(TEN) as of:
        of.tick(0)
        of.depose(0)
        of.tick(1)
        of.advance(7)
        of.tick(0)
        assert of.sent == []
        assert in_redis(of, "ten")[0] == START

        of.tick(1)
        assert [(sent.beat, sent.due) for sent in of.sent] == [(1, at(10))]


@pytest.mark.parametrize(("catch_up", "sent"), [("once", [30]), ("none", [])])
def test_what_was_missed_while_nobody_led(make: Make, catch_up: str, sent: list[int]) -> None:
    with make(TEN, dlock_beat_catch_up=catch_up) as of:
        of.tick(0)
        of.advance(30)
        take_over(of, 1)
        assert of.dues("ten") == [at(due) for due in sent]
        of.advance(7)
        of.tick(1)

        assert of.dues("ten") == [at(due) for due in [*sent, 40]]


def test_of_what_was_missed_only_what_was_claimed_is_sent(make: Make) -> None:
    with make(TEN, dlock_beat_catch_up="none") as of:
        of.tick(0)
        of.advance(7)
        of.faults["before it is published"] = dies
        of.tick(0)
        of.advance(25)
        of.tick(1)
        of.advance(5)
        of.tick(1)

        assert of.dues("ten") == [at(10), at(40)]
        assert of.missed() == [("ten", at(20).isoformat(), at(40).isoformat())]


def test_what_people_change_while_a_beat_leads(make: Make) -> None:
    with make(TEN) as of:
        run(of, until=15)
        made = entry(of, "dynamic", schedule(10, app=of.app))
        run(of, until=25)
        entry(of, "dynamic", schedule(20, app=of.app))
        run(of, until=45)
        entry(of, "dynamic", schedule(20, app=of.app), enabled=False)
        run(of, until=105)
        entry(of, "dynamic", schedule(20, app=of.app))
        run(of, until=125)
        made.delete()
        run(of, until=165)

        assert of.dues("dynamic") == [at(20), at(40), at(120)]
        assert of.dues("ten") == [at(10 * number) for number in range(1, 17)]


def test_an_entry_that_was_switched_off_is_not_made_up_for_by_the_next_leader(make: Make) -> None:
    with make({}) as of:
        entry(of, "dynamic", schedule(60, app=of.app))
        run(of, until=15)
        entry(of, "dynamic", schedule(60, app=of.app), enabled=False)
        run(of, until=185)
        entry(of, "dynamic", schedule(60, app=of.app))
        of.tick(0)
        take_over(of, 1)

        assert of.sent == []


def test_a_change_of_the_lead_leaves_what_redbeat_counts_as_it_is(make: Make) -> None:
    def runs(of: Beats, name: str) -> tuple[int, datetime]:
        key = RedBeatSchedulerEntry.generate_key(of.app, name)
        meta = RedBeatSchedulerEntry.load_meta(key, app=of.app)
        return meta["total_run_count"], meta["last_run_at"]

    with make(TEN) as of:
        off = entry(of, "off", schedule(10, app=of.app))
        gone = entry(of, "gone", schedule(10, app=of.app))
        run(of, until=35)
        entry(of, "off", schedule(10, app=of.app), enabled=False)
        gone.delete()
        assert [runs(of, "ten"), runs(of, "off")] == [(3, at(30)), (3, at(30))]
        of.advance(30)
        take_over(of, 1)

        assert [runs(of, "ten"), runs(of, "off")] == [(4, at(60)), (3, at(30))]
        assert of.app.redbeat_redis.zscore(of.app.redbeat_conf.schedule_key, gone.key) is None
        assert of.app.redbeat_redis.zscore(of.app.redbeat_conf.schedule_key, off.key) is not None


def test_an_entry_without_a_last_run(make: Make) -> None:
    with make(TEN) as of:
        of.tick(0)
        made = entry(of, "dynamic", schedule(10, app=of.app))
        of.app.redbeat_redis.hdel(made.key, "meta")
        run(of, until=25)

        assert of.dues("dynamic") == [at(10), at(20)]
        assert of.dues("ten") == [at(10), at(20)]
        assert len(of.told(Acquired)) == 1


def test_a_crontab_and_a_rule_that_comes_to_its_end(make: Make) -> None:
    with make({"minutely": crontab()}) as of:
        entry(of, "thrice", rrule("SECONDLY", dtstart=START, interval=20, count=3, app=of.app))
        of.tick(0)
        of.advance(150)
        take_over(of, 1)
        run(of, until=200, number=1)

        assert of.dues("minutely") == [at(120), at(180)]
        assert of.dues("thrice") == [at(43)]


def test_its_own_lock_is_not_waited_for(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    with make(TEN) as of:
        of.tick(0)
        held = of.app.redbeat_redis.lock(of.app.redbeat_conf.lock_key, timeout=600)
        assert held.acquire(blocking=False)
        with caplog.at_level(logging.ERROR):
            signals.beat_init.send(sender=Service(of.app, scheduler_cls=LeaderScheduler))
        run(of, until=15)
        of.beats[0].close()
        of.tick(1)

        assert not [record for record in caplog.records if record.levelno >= logging.ERROR]
        assert held.owned()
        assert of.dues("ten") == [at(10)]
        assert of.leader() == 1


def test_a_redis_that_comes_back_empty(make: Make, own_redis_server: RedisServer) -> None:
    with make(TEN, own_redis_server) as of:
        run(of, until=15)
        own_redis_server.kill()
        for _ in range(5):
            of.advance(3)
            of.tick_all()
        assert of.leader() is None
        own_redis_server.start()
        of.tick_all()

        assert of.dues("ten") == [at(10), at(30)]
        assert of.leader() == 0
