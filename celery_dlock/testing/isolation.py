"""An application that touches nothing real for a while: broker, results and locks in memory.

Celery keeps its connection pool, its producer pool and its result backend from the first use on.
A change of ``broker_url`` after that changes only some of them, so a test could publish to the real
broker. Therefore the application's own objects are replaced, and not its settings.
"""

# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from weakref import WeakKeyDictionary

from celery import Celery
from celery.backends.cache import CacheBackend
from celery.utils.functional import LRUCache
from kombu.pools import ProducerPool

from celery_dlock.runtime import kept_in_memory, real_app
from celery_dlock.stores.base import Clock

#: Results that are kept, as in Celery's own cache in memory.
_RESULTS = 5000


class _Isolation:
    """What replaces the real objects of one application, and how many blocks need it."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.until_then = ExitStack()
        self.blocks = 0


_isolated: WeakKeyDictionary[Celery, _Isolation] = WeakKeyDictionary()
_mutex = threading.RLock()


@contextmanager
def isolated(app: Any, clock: Clock) -> Iterator[Any]:
    """In the block *app* reaches no broker, result backend, lock store, history or named sink.

    Gives the clock of its lock store: *clock*, or that of the block around it. Blocks may end in
    any order; the last one gives the application its own objects back. Raises
    :exc:`~celery_dlock.ConfigurationError` for a wrong configuration.
    """
    app = real_app(app)
    with _mutex:
        isolation = _isolated.get(app)
        if isolation is None:
            isolation = _Isolation(clock)
            with ExitStack() as stack:
                stack.enter_context(_in_process(app))
                stack.enter_context(kept_in_memory(app, clock))
                isolation.until_then = stack.pop_all()
            _isolated[app] = isolation
        isolation.blocks += 1
    try:
        yield isolation.clock
    finally:
        with _mutex:
            isolation.blocks -= 1
            if not isolation.blocks:
                del _isolated[app]
                isolation.until_then.close()


def empty_queues(app: Any) -> None:
    """Drop all messages that the broker of *app* has in the queues of *app*."""
    with app.connection_for_write() as connection:
        for name in app.amqp.queues:
            for queue in (name, f"{name}.woken"):
                connection.default_channel.queue_purge(queue)


@contextmanager
def _in_process(app: Any) -> Iterator[None]:
    """Broker and results of *app* are in the memory of this process."""
    results = CacheBackend(app=app, url="memory://")
    results.thread_safe = True  # Celery keeps it for all threads
    results.client.cache = LRUCache(limit=_RESULTS)
    limit = app.conf.broker_pool_limit

    def connect(url: Any = None, **_: Any) -> Any:
        return app.amqp.Connection("memory://localhost/")

    def backend() -> Any:
        return results

    connections = connect().Pool(limit=limit)
    producers = ProducerPool(connections, limit=limit)
    with ExitStack() as until_then:
        replaced: dict[str, Any] = {"_pool": connections, "_backend_cache": results}
        replaced |= {"connection_for_read": connect, "connection_for_write": connect}
        replaced["_get_backend"] = backend
        until_then.enter_context(_attributes(app, replaced))
        until_then.enter_context(_attributes(app.amqp, {"_producer_pool": producers}))
        until_then.enter_context(_task_backends(app, results))
        empty_queues(app)
        yield
        empty_queues(app)
        connections.force_close_all()


@contextmanager
def _task_backends(app: Any, results: Any) -> Iterator[None]:
    """Tasks that were defined with a ``backend`` of their own use *results*, too."""
    with ExitStack() as until_then:
        for task in app.tasks.values() if app.finalized or app.autofinalize else ():
            own_backend = {"backend": results, "_backend": results}
            until_then.enter_context(_attributes(task, own_backend))
        yield


@contextmanager
def _attributes(thing: Any, values: dict[str, Any]) -> Iterator[None]:
    own = vars(thing)
    before = {name: own[name] for name in values if name in own}
    own.update(values)
    try:
        yield
    finally:
        for name in values:
            own.pop(name, None)
        own.update(before)
