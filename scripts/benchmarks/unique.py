"""What a unique task costs where it is published, beside those that do the same; and without store.

All in one process that publishes, and nobody who works: so every key's first call lives. What is
measured is the processor time of that process: the servers beside it have their own.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from typing import Any

from celery import Celery
from celery_once import QueueOnce
from celery_singleton import Singleton
from rich.console import Console
from rich.table import Table

from celery_dlock import Debounce, LockedTask, Ordered
from celery_dlock.runtime import forget
from scripts.benchmarks.measure import Measured, in_turns, percentile
from tests.services.redis import RedisServer

#: Calls of a round, rounds, and the keys of which many calls are duplicates.
CALLS, ROUNDS, KEYS = 50, 100, 100

#: Publishes while the store is away.
AWAY = 1_000

#: What the other contestants are compared with.
PLAIN, ONCE = "a plain task", "celery-once"

Publish = Callable[[int], object]


def show_unique(console: Console, server: RedisServer) -> None:
    """Two tables, of first calls and of their duplicates, and the store stopped."""
    first, duplicate = "First calls, each of its own key", f"Duplicate calls of {KEYS} keys"
    with ExitStack() as stack:
        publishers = {name: stack.enter_context(_publisher(server, name)) for name in CONTESTANTS}
        for publish in publishers.values():
            for key in range(KEYS):
                publish(key)  # it has connected, and these keys' first calls live
        _show(console, first, publishers, lambda: count(KEYS))
        _show(console, duplicate, publishers, _repeated)
    _show_away(console, server)


def _repeated() -> Iterator[int]:
    return (number % KEYS for number in count())


def _show(
    console: Console,
    title: str,
    publishers: dict[str, Publish],
    keys: Callable[[], Iterator[int]],
) -> None:
    turns = {name: _turn(publish, keys()) for name, publish in publishers.items()}
    rows = {row.name: row for row in in_turns(turns, ROUNDS)}
    columns = ("", "µs a call", "of plain", "of celery-once")
    about = f"{title}, one publisher, {ROUNDS} × {CALLS:,} calls in turns"
    table = Table(*columns, title=about, title_justify="left", min_width=76)
    for name, row in rows.items():
        table.add_row(name, f"{1e6 / row.rate:.0f}", *(_cost(row, rows[n]) for n in (PLAIN, ONCE)))
    console.print(table)


def _turn(publish: Publish, keys: Iterator[int]) -> Callable[[], float]:
    def calls_a_second() -> float:
        began = time.process_time()
        for _ in range(CALLS):
            publish(next(keys))
        return CALLS / (time.process_time() - began)

    return calls_a_second


def _cost(row: Measured, other: Measured) -> str:
    """What a call of *row* costs, as a multiple of one of the *other*: a median, and the spread."""
    ratios = other.ratios_to(row)
    return f"{percentile(ratios, 0.5):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"


@contextmanager
def _publisher(server: RedisServer, name: str) -> Iterator[Publish]:
    app, store = _app(server, name)
    yield CONTESTANTS[name](app, store)
    forget(app)
    app.close()


def _app(server: RedisServer, name: str) -> tuple[Celery, str]:
    """An application with a queue of its own, and where its locks are."""
    base = server.url.rpartition("/")[0]
    app = Celery(name, broker=f"{base}/1", set_as_current=False)
    app.conf.task_default_queue = name.replace(" ", "-")
    return app, f"{base}/2"


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


def _debounced(app: Celery, store: str) -> Publish:
    return _ours(app, store, lock_unique=Debounce(3600, 3600))


def _ordered(app: Celery, store: str) -> Publish:
    return _ours(app, store, lock_on_contention=Ordered())


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
    PLAIN: _plain,
    "a locked task": _ours,
    "an ordered task": _ordered,
    "a unique task": _unique,
    "a debounced task": _debounced,
    ONCE: _once,
    "celery-singleton": _singleton,
}


def _at_the_broker(app: Celery) -> int:
    with app.connection_for_write() as connection:
        return int(connection.default_channel.client.llen(app.conf.task_default_queue))


def _show_away(console: Console, server: RedisServer) -> None:
    """The broker answers, and the lock store does not."""
    with RedisServer() as store:
        app, _ = _app(server, "away")
        publish = _unique(app, store.url)
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
