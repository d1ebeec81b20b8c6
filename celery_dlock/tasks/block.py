"""Locks without a message: ``lock()`` in web handlers and scripts, and direct calls of a task.

They take the very locks that tasks take. A key that the running code holds already is not taken
again: the block runs under the lease that is there. For a coroutine threads ask the store
(:mod:`~celery_dlock.tasks.event_loop`).
"""

from __future__ import annotations

import re
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import (
    AbstractAsyncContextManager,
    AbstractContextManager,
    asynccontextmanager,
    contextmanager,
    nullcontext,
)
from functools import partial
from types import TracebackType
from typing import Any

from celery import current_app

from celery_dlock.core.access import Keys, Wanted, entries
from celery_dlock.core.checks import duration, quoted
from celery_dlock.core.keys import canonical
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Outcome
from celery_dlock.errors import ConfigurationError
from celery_dlock.locks.current import holding
from celery_dlock.runtime import real_app, runtime
from celery_dlock.tasks.asking import Asking

#: What looks like a field of a template, whose f or format() was forgotten.
_FIELD = re.compile(r"\{(?:\w+(?:\.\w+|\[[^\[\]]+\])*)?\}")


def lock(
    key: Wanted | Sequence[Wanted],
    *,
    app: Any = None,
    ttl: float | None = None,
    timeout: float = 5.0,
    limit: int = 1,
    shared: bool = False,
    parents: str | Sequence[str] = (),
    cooldown: float | None = None,
) -> Block:
    """Hold *key* for the time of a ``with`` block, outside tasks or inside them.

    With ``async with`` it does not block the event loop of asyncio. It waits for up to *timeout*
    seconds (0: it asks once and does not wait). *ttl* is the length of the lease in seconds, which
    is renewed in the background while the block runs. Of several keys all are taken or none; each
    may be a :class:`~celery_dlock.Limit` or :class:`~celery_dlock.Shared`. *parents* are keys that
    the block holds for reading: an exclusive lock on one of them waits for the block, and the block
    waits for it. *cooldown* keeps the key closed for that many seconds from the beginning of the
    block, even if the block has ended.

    It raises

    * :exc:`~celery_dlock.ConfigurationError` for wrong arguments, and for a plain ``with`` with a
      *timeout* above 0 in a thread that runs an event loop;
    * :exc:`~celery_dlock.LockTimeout` after *timeout*;
    * :exc:`~celery_dlock.LockContended` at once with ``timeout=0``, or if the running code holds
      the key in another mode;
    * :exc:`~celery_dlock.LockLost` if the running code held the key and has lost it, or if the
      process was paused before the block began;
    * :exc:`~celery_dlock.BackendUnavailable` if the store does not answer.
    """
    own = entries(key, limit, shared=shared, cooldown=cooldown)
    if not own:
        raise ConfigurationError("a lock needs at least one key, got an empty list")
    above = [parents] if isinstance(parents, str) else parents
    timeout = duration("timeout", timeout, zero=True)
    app = app or current_app
    begin = partial(
        Asking.begin,
        app,
        Keys.of(
            [(canonical(_literal(k)), access) for k, access in own],
            (canonical(_literal(k)) for k in above),
        ),
        name="lock()",
        ttl=None if ttl is None else duration("ttl", ttl),
        max_hold=None,
        timeout=timeout,
    )
    return Block(app, timeout, begin)


class Block:
    """What :func:`lock` returns: for ``with`` and ``async with``; or for code that can use neither,
    :meth:`acquire` and :meth:`release`, which any thread may call.
    """

    def __init__(self, app: Any, timeout: float, begin: Callable[[], Asking]) -> None:
        self._app = app
        self._timeout = timeout
        self._begin = begin
        self._entered: AbstractContextManager[Lease] | None = None
        self._awaited: AbstractAsyncContextManager[Lease] | None = None

    def acquire(self) -> Lease:
        """Take the lock, as ``with`` does.

        The lease is renewed until it is released, as long as this process lives. At the exit of the
        process it is not released, and expires. It is not the current lease: pass it on, as in
        ``admit(connection, lease)``. The key is not re-entrant under it.

        Raises what :func:`lock` does, and :exc:`RuntimeError` if it is already acquired.
        """
        lease = self._enter(locked_block(self._begin, current=False))
        _UNRELEASED.add(self)
        return lease

    def release(self) -> None:
        """Release the lock that :meth:`acquire` has taken, and never that of a later owner.

        Raises :exc:`RuntimeError` if it is not acquired, or is already released.
        """
        _UNRELEASED.discard(self)
        self._leave(None, None, None)

    def __enter__(self) -> Lease:
        return self._enter(locked_block(self._begin))

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._leave(kind, error, traceback)

    async def __aenter__(self) -> Lease:
        self._refuse_second()
        self._awaited = _locked_async_block(self._app, self._begin)
        try:
            return await self._awaited.__aenter__()
        except BaseException:
            self._awaited = None
            raise

    async def __aexit__(self, *error: Any) -> None:
        block, self._awaited = self._awaited, None
        if block is not None:
            await block.__aexit__(*error)

    def _enter(self, block: AbstractContextManager[Lease]) -> Lease:
        if self._timeout:
            _refuse_to_block_a_loop(self._timeout)
        self._refuse_second()
        lease = block.__enter__()
        self._entered = block
        return lease

    def _refuse_second(self) -> None:
        if self._entered is not None or self._awaited is not None:
            raise RuntimeError(
                "this lock() is acquired already: another owner needs a lock() of its own"
            )

    def _leave(self, *error: Any) -> bool | None:
        block, self._entered = self._entered, None
        if block is None:
            raise RuntimeError("this lock() is not acquired, or is released already")
        return block.__exit__(*error)


#: What is not to be released by the garbage collector, when only its lease is kept.
_UNRELEASED: set[Block] = set()


def _literal(text: object) -> str:
    """*text*, if it is a key and no template: here nobody fills in a field."""
    if not isinstance(text, str):
        raise ConfigurationError(f"lock() takes a text, or a list of them, got {quoted(text)}")
    field = _FIELD.search(text)
    if field is None:
        return text
    raise ConfigurationError(
        f"lock() takes a key as it is, so {field[0]} in {quoted(text)} would be the same for all: "
        f"put an f before the quotes (write %7B for a literal brace)"
    )


def _refuse_to_block_a_loop(timeout: float) -> None:
    """Also where the key is free: else it would be noticed only in production."""
    if "asyncio" not in sys.modules:
        return
    import asyncio

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ConfigurationError(
        f"with lock(..., timeout={timeout:g}) would block the event loop that this thread runs: "
        "write `async with lock(...)`, or timeout=0, which asks once and does not wait"
    )


@contextmanager
def locked_block(begin: Callable[[], Asking], *, current: bool = True) -> Iterator[Lease]:
    """Run the block under what is asked for; its lease is the *current* one of the running code."""
    asking = begin()
    try:
        while (pause := asking.ask()) is not None:
            time.sleep(pause)
        lease = asking.lease()
        with holding(lease, asking.here.backend) if current else nullcontext():
            lease.check()  # it may have stood still since it asked
            yield lease
    finally:
        try:
            asking.hold.give_back(Outcome.OVER)
        except BaseException:
            # A soft time limit can strike anywhere, here too; the keeper would renew for ever.
            asking.hold.give_back(Outcome.OVER)
            raise


@asynccontextmanager
async def _locked_async_block(app: Any, begin: Callable[[], Asking]) -> AsyncIterator[Lease]:
    """The same for a coroutine. Once that is cancelled, a thread gives back what is granted."""
    import asyncio

    from celery_dlock.tasks.event_loop import Calls

    calls = Calls()
    await calls.call(runtime, real_app(app))  # the first use loads the driver
    asking = begin()
    release = partial(asking.hold.give_back, Outcome.OVER)
    try:
        while (pause := await calls.call(asking.ask)) is not None:
            await asyncio.sleep(pause)
        lease = asking.lease()
        await calls.call(lease.check)
    except BaseException:
        calls.end(release)
        raise
    try:
        with holding(lease, asking.here.backend):
            yield lease
    finally:
        await calls.end(release)
