"""An application that touches nothing real for a while: broker, results and locks in memory.

Celery keeps its connection pool, its producer pool and its result backend from the first use on.
A change of ``broker_url`` after that changes only some of them, so a test could publish to the real
broker. Therefore the application's own objects are replaced, and not its settings.

Where every application is isolated, each is so when it is first used: by then it is configured, and
what nobody uses may be misconfigured.
"""

# mypy: allow-untyped-calls
# pyright: reportUnknownMemberType=false

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock
from weakref import WeakKeyDictionary

from celery import Celery, Task
from celery.app.amqp import AMQP
from celery.backends.cache import CacheBackend
from celery.utils.functional import LRUCache
from kombu.pools import ProducerPool

from celery_dlock.errors import ConfigurationError
from celery_dlock.messages.woken_queues import is_woken, name_beside
from celery_dlock.runtime import ANOTHER_PROCESS, before_use, kept_in_memory, real_app
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


#: By these Celery uses an application's broker and results, also those that it has kept.
_USES = (
    (Celery, "connection_for_read"),
    (Celery, "connection_for_write"),
    (Celery, "pool"),
    (Celery, "backend"),
    (AMQP, "producer_pool"),
    (AMQP, "publisher_pool"),
    (Task, "backend"),
)


@contextmanager
def isolated(app: Any, clock: Clock) -> Iterator[Any]:
    """In the block *app* reaches no broker, result backend, lock store, history or named sink.

    Gives the clock of its lock store: *clock*, or that of the block around it. Blocks may end in
    any order; the last one gives the application its own objects back. Raises
    :exc:`~celery_dlock.ConfigurationError` for a wrong configuration.
    """
    app = real_app(app)
    for isolate in before_use:  # a block for every application is around this one
        isolate(app)
    with _block(app, clock) as kept:
        yield kept


@contextmanager
def every_app_isolated(clock: Clock) -> Iterator[None]:
    """In the block each application is :func:`isolated` from its first use to the block's end.

    *clock* is that of all their lock stores. In a forked process an application that was not used
    before the fork raises :exc:`~celery_dlock.ConfigurationError`.
    """
    home = os.getpid()
    with ExitStack() as until_then:

        def isolate(app: Any) -> None:
            isolation = _isolated.get(app)
            if isolation and isolation.blocks:
                return
            if os.getpid() != home:
                raise ConfigurationError(ANOTHER_PROCESS)
            with _mutex:
                if app not in _isolated:
                    until_then.enter_context(_block(app, clock))

        before_use.append(isolate)
        until_then.callback(before_use.remove, isolate)
        for owner, name in _USES:
            use = _isolating(vars(owner)[name], name, isolate)
            until_then.enter_context(mock.patch.object(owner, name, use))
        yield


def _isolating(whole: Any, name: str, isolate: Callable[[Any], None]) -> Any:
    """*whole*, a method or a property, which isolates its application first."""
    if isinstance(whole, property):

        def get(self: Any) -> Any:
            isolate(real_app(getattr(self, "app", self)))
            return whole.__get__(self)

        return property(get, whole.fset)

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        isolate(self)
        return vars(self)[name](*args, **kwargs)

    return call


@contextmanager
def _block(app: Any, clock: Clock) -> Iterator[Clock]:
    with _mutex:
        isolation = _isolated.get(app) or _isolate(app, clock)
        isolation.blocks += 1
    try:
        yield isolation.clock
    finally:
        with _mutex:
            isolation.blocks -= 1
            if not isolation.blocks:
                del _isolated[app]
                isolation.until_then.close()


def _isolate(app: Any, clock: Clock) -> _Isolation:
    isolation = _isolated[app] = _Isolation(clock)  # at once, for what follows uses the application
    try:
        with ExitStack() as stack:
            stack.enter_context(_in_process(app))
            stack.enter_context(kept_in_memory(app, clock))
            isolation.until_then = stack.pop_all()
    except BaseException:
        del _isolated[app]
        raise
    return isolation


def queues_of(app: Any) -> list[str]:
    """The queues of *app*, first those of its woken messages."""
    homes = [name for name in app.amqp.queues if not is_woken(name)]
    return [*map(name_beside, homes), *homes]


def empty_queues(app: Any) -> None:
    """Drop all messages that the broker of *app* has in the queues of *app*."""
    with app.connection_for_write() as connection:
        for queue in queues_of(app):
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
        if len(_isolated) == 1:  # else another one's messages may be on their way
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
