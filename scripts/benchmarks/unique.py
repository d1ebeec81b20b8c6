"""What a unique task costs where it is published, beside those that do the same; and without store.

All in one process that publishes, and nobody who works: so every key's first call lives.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton
from redis import Redis
from rich.console import Console
from rich.table import Table

from celery_dlock import Debounce, LockedTask, Unique
from celery_dlock.runtime import forget
from tests.services.redis import RedisServer

CALLS, KEYS = 10_000, 100

#: Publishes while the store is away.
AWAY = 1_000

Publish = Callable[[int], object]


def show_unique(console: Console, server: RedisServer) -> None:
    """Two tables: many duplicates of few keys, and the store stopped."""
    with Redis.from_url(server.url) as client:
        client.flushall()
    title = f"{CALLS:,} calls of {KEYS} keys, one publisher"
    columns = ("", "at the broker", "µs a call", "of the first")
    table = Table(*columns, title=title, title_justify="left", min_width=76)
    first = 0.0
    for name, make in CONTESTANTS.items():
        app = Celery(name, broker=f"{server.url.rpartition('/')[0]}/1", set_as_current=False)
        app.conf.task_default_queue = name.replace(" ", "-")
        publish = make(app, f"{server.url.rpartition('/')[0]}/2")
        publish(KEYS)  # it has connected
        before = _at_the_broker(app)
        began = time.perf_counter()
        for number in range(CALLS):
            publish(number % KEYS)
        each = (time.perf_counter() - began) / CALLS
        first = first or each
        sent = _at_the_broker(app) - before
        table.add_row(name, f"{sent:,}", f"{each * 1e6:.0f}", f"{each / first:.2f}")
        forget(app)
        app.close()
    console.print(table)
    _show_away(console, server)


def _plain(app: Celery, store: str) -> Publish:
    @app.task(name="plain")
    def report(day: int) -> None: ...

    publish: Publish = report.delay
    return publish


def _ours(app: Celery, store: str, **options: Any) -> Publish:
    app.conf.dlock_url = store

    @app.task(name="report", base=LockedTask, lock_key="day:{day}", shared=False, **options)
    def report(day: int) -> None: ...

    publish: Publish = report.delay
    return publish


def _unique(app: Celery, store: str) -> Publish:
    return _ours(app, store, lock_unique="done")


def _replaces(app: Celery, store: str) -> Publish:
    return _ours(app, store, lock_unique=Unique(on_duplicate="newest"))


def _debounced(app: Celery, store: str) -> Publish:
    return _ours(app, store, lock_unique=Debounce(3600, 3600))


def _once(app: Celery, store: str) -> Publish:
    backend = {"backend": "celery_once.backends.Redis", "settings": {"url": store}}
    app.conf.ONCE = {**backend, "settings": {"url": store, "default_timeout": 3600}}

    @app.task(name="once", base=QueueOnce, once={"graceful": True})
    def report(day: int) -> None: ...

    publish: Publish = report.delay
    return publish


def _singleton(app: Celery, store: str) -> Publish:
    app.conf.singleton_backend_url = store

    @app.task(name="singleton", base=Singleton)
    def report(day: int) -> None: ...

    publish: Publish = report.delay
    return publish


CONTESTANTS: dict[str, Callable[[Celery, str], Publish]] = {
    "a plain task": _plain,
    "a locked task": _ours,
    "a unique task": _unique,
    "the newest wins": _replaces,
    "a debounced task": _debounced,
    "celery-once": _once,
    "celery-singleton": _singleton,
}


def _at_the_broker(app: Celery) -> int:
    with app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen(app.conf.task_default_queue))


def _show_away(console: Console, server: RedisServer) -> None:
    """The broker answers, and the lock store does not."""
    with RedisServer() as store:
        url = store.url
        app = Celery("away", broker=f"{server.url.rpartition('/')[0]}/1", set_as_current=False)
        app.conf.task_default_queue = "away"
        publish = _unique(app, url)
        publish(0)
    logging.getLogger("celery_dlock").setLevel(logging.ERROR)  # which is told of each call
    times = []
    for number in range(AWAY):
        began = time.perf_counter()
        publish(number)
        times.append(time.perf_counter() - began)
    longest, mean = max(times) * 1000, sum(times) / len(times) * 1000
    console.print(
        f"{AWAY:,} calls while the lock store is stopped: {_at_the_broker(app) - 1:,} at the "
        f"broker, {mean:.2f} ms each, {longest:.1f} ms the longest"
    )
    forget(app)
    app.close()
