"""One key that cannot be read: the others are shown, and it is named; a task stays away from it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import redis
from celery import Celery

from celery_dlock.beat.leader import key_of
from celery_dlock.core.state import Claim, KeyState, WaitMode
from celery_dlock.errors import BackendUnavailable
from celery_dlock.ops import overview
from celery_dlock.ops.explain import State, explain
from celery_dlock.ops.gauges import Gauges, beat_leads
from celery_dlock.ops.overview import page
from celery_dlock.ops.urgent import FIRST_UNREADABLE, Snapshot, most_urgent
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.redis.wire import base_name
from tests.services.redis import RedisServer

A_MINUTE = 60_000_000
KEYS = [f"order:{number}" for number in range(8)]


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Celery]:
    made = Celery("shop", broker="memory://", set_as_current=False)
    made.conf.dlock_url = f"sqlite:///{tmp_path / 'locks.db'}"
    yield made
    forget(made)


def hold_all(app: Celery, keys: Sequence[str] = KEYS) -> None:
    """Each key is held by a task of its own, and one waits for it."""
    for key in keys:
        for task in ("holds", "waits"):
            claim = Claim(key, f"{key}-{task}:0:0", "n", ttl=A_MINUTE, wait=WaitMode.QUEUE)
            runtime(app).backend.enter(claim, b"{}\n")


Spoil = Callable[..., None]


@pytest.fixture(params=["sqlite", pytest.param("redis", marks=pytest.mark.server("redis"))])
def spoil(request: pytest.FixtureRequest, app: Celery, tmp_path: Path) -> Spoil:
    """``spoil(key, …)``: something else has written to the store."""
    if request.param == "sqlite":
        return partial(spoil_file, tmp_path)
    # Redis lists the names of a server page by page, so others' would divide ours.
    server: RedisServer = request.getfixturevalue("own_redis_server")
    app.conf.dlock_url = server.url

    def spoil_redis(*keys: str) -> None:
        with redis.Redis.from_url(server.url) as client:
            for key in keys:
                name = base_name(runtime(app).settings.key_prefix, key)
                client.set(f"{name}:state", "garbage")

    return spoil_redis


def spoil_file(folder: Path, *keys: str) -> None:
    with closing(sqlite3.connect(folder / "locks.db")) as db, db:
        db.executemany("UPDATE state SET holders='garbage' WHERE key=?", [(key,) for key in keys])


def test_an_unreadable_key_is_named_beside_the_others(app: Celery, spoil: Spoil) -> None:
    hold_all(app)
    spoil("order:3")

    for lines in (most_urgent(app).lines, page(app).lines, most_urgent(app, waiting=True).lines):
        broken = [line.key for line in lines if line.unreadable]
        held = {line.key for line in lines if line.holders}
        assert (broken, held) == (["order:3"], {*KEYS} - {"order:3"})
    assert most_urgent(app).lines[0].unreadable  # what is wrong is not on the next page
    gauges = Gauges.of(app)
    assert (gauges.held_keys, gauges.waiting_tasks) == (7, 7)
    assert explain(app, "order:5-waits").state is State.WAITING
    nobody = explain(app, "nobody")
    assert nobody.state is State.UNKNOWN
    assert "the lock store cannot read 'order:3'" in nobody.gaps


def test_no_beat_leads_by_a_key_that_cannot_be_read(app: Celery, spoil: Spoil) -> None:
    hold_all(app, [key_of(app)])
    assert beat_leads(app) is True

    spoil(key_of(app))

    assert beat_leads(app) is False


def test_many_keys_that_cannot_be_read_are_named_by_one_look_and_hide_no_others(
    app: Celery, spoil: Spoil, monkeypatch: pytest.MonkeyPatch
) -> None:
    hold_all(app)
    spoil(*KEYS[1:])
    asked = looks(app, monkeypatch, runtime(app).backend.look)

    lines = most_urgent(app).lines

    assert sorted(line.key for line in lines if line.unreadable) == KEYS[1:]
    assert [line.key for line in lines if line.holders] == KEYS[:1]
    assert asked == [8, 1]


Look = Callable[[list[str]], list[KeyState]]


def looks(app: Celery, monkeypatch: pytest.MonkeyPatch, look: Look) -> list[int]:
    """After how many keys the store is asked at once, each time; it answers as *look* does."""
    asked: list[int] = []

    def counted(keys: list[str]) -> list[KeyState]:
        asked.append(len(keys))
        return look(keys)

    monkeypatch.setattr(runtime(app).backend, "look", counted)
    return asked


def test_unreadable_keys_are_counted_beside_the_others(app: Celery, tmp_path: Path) -> None:
    keys = [f"order:{number}" for number in range(60)]
    hold_all(app, keys)
    spoil_file(tmp_path, *keys[:57])

    for found in (most_urgent(app), most_urgent(app, waiting=True), Snapshot.of(app, 100)):
        unreadable = [bool(line.unreadable) for line in found.lines]
        assert (found.counts.unreadable, found.counts.held, found.counts.waiting) == (57, 3, 3)
        assert unreadable == [True] * FIRST_UNREADABLE + [False] * 3 + [True] * (57 - 10)
    assert [bool(line.unreadable) for line in most_urgent(app, 12).lines] == [True] * 10 + [
        False
    ] * 2
    assert [line.key for line in page(app).lines if not line.unreadable] == keys[57:]
    gauges = Gauges.of(app)
    assert (gauges.held_keys, gauges.waiting_tasks, gauges.unreadable_keys) == (3, 3, 57)


def test_a_store_that_can_read_no_key_of_a_driver_that_does_not_say_why_is_away(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was up when the list began, and then each question is answered with an error."""
    hold_all(app)
    look = runtime(app).backend.look

    def breaks(keys: list[str]) -> list[KeyState]:
        if len(asked) == 2:
            return look(keys)
        raise BackendUnavailable("an error")

    asked = looks(app, monkeypatch, breaks)
    with pytest.raises(BackendUnavailable):
        overview.look(runtime(app).backend, KEYS)
    assert asked == [8, 1, 4, 1]


def test_a_store_that_is_away_is_not_asked_for_each_key(
    app: Celery, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: list[str]) -> list[KeyState]:
        raise BackendUnavailable("away")

    asked = looks(app, monkeypatch, away)
    with pytest.raises(BackendUnavailable):
        overview.look(runtime(app).backend, KEYS)
    assert asked == [8, 1]
