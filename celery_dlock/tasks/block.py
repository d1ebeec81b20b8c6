"""Locks without a message: ``lock()`` in web handlers and scripts, and direct calls of a task.

They take the same locks as tasks. A key that the running code already holds is not taken again: the
block runs under that lease. For a coroutine, threads ask the store
(:mod:`~celery_dlock.tasks.event_loop`).
"""

from __future__ import annotations

import inspect
import re
import sys
import threading
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
from types import FrameType, TracebackType
from typing import Any, TypedDict, Unpack

from celery import current_app

from celery_dlock.core.access import Keys, WantedText, entries
from celery_dlock.core.checks import duration, optional_duration, quoted
from celery_dlock.core.edits import ask_with_limit, free
from celery_dlock.core.keys import canonical
from celery_dlock.core.lease import Lease
from celery_dlock.core.state import Outcome
from celery_dlock.core.turns import drop_expired
from celery_dlock.errors import ConfigurationError, StaleFencingToken
from celery_dlock.locks.current import holding
from celery_dlock.locks.definition import nearest_option
from celery_dlock.locks.foreign import FOREIGN_TO_BLOCKS, refuse_foreign
from celery_dlock.runtime import real_app, runtime
from celery_dlock.tasks.acquisition import Acquisition
from celery_dlock.tasks.entered import Entered

Begin = Callable[[], Acquisition]

#: The options of a block.
OPTIONS = ("key", "app", "ttl", "timeout")

#: A field of a template, as in a text whose f or format() was forgotten.
_FIELD = re.compile(r"\{(?:\w+(?:\.\w+|\[[^\[\]]+\])*)?\}")


class NoOptions(TypedDict):
    """To a type checker any other option of :func:`lock` is an error; else it names ours."""


def lock(
    key: WantedText | Sequence[WantedText],
    *,
    app: Any = None,
    ttl: float | None = None,
    timeout: float = 5.0,
    **unknown: Unpack[NoOptions],
) -> Block:
    """Hold *key* for the time of a ``with`` block, outside tasks or inside them.

    The object may be a constant of a module: each ``with`` and ``async with`` takes the lock anew,
    in any number of threads, coroutines and greenlets at once.

    With ``async with`` it does not block the event loop of asyncio. It waits for up to *timeout*
    seconds (0: it asks once and does not wait). *ttl* is the length of the lease in seconds, which
    is renewed in the background while the block runs. Of several keys all are taken or none; each
    may be a :class:`~celery_dlock.Limit` or :class:`~celery_dlock.Shared`. A cooldown begins with
    the block. Nothing interrupts a block whose lock is lost: look at :attr:`Lease.lost
    <celery_dlock.Lease.lost>` inside.

    It raises

    * :exc:`~celery_dlock.ConfigurationError` for wrong arguments, and for a plain ``with`` with a
      *timeout* above 0 in a thread that runs an event loop;
    * :exc:`~celery_dlock.LockTimeout` after *timeout*;
    * :exc:`~celery_dlock.LockContended` at once with ``timeout=0``, or if the running code holds
      the key in another mode;
    * :exc:`~celery_dlock.LockLost` if the running code held the key and has lost it, or if the
      process was paused before the block began. Also at the end of a block, which has run by then:
      if its lock was lost meanwhile, or if it ran under the lease of a block around it and that
      has ended first. An error of the block's own goes on instead;
    * :exc:`~celery_dlock.BackendUnavailable` if the store does not answer.
    """
    for name in unknown:
        refuse_foreign("lock()", [name], foreign=FOREIGN_TO_BLOCKS)
        meant = nearest_option(name, OPTIONS)
        hint = f"did you mean {meant}?" if meant else f"known: {', '.join(OPTIONS)}"
        raise ConfigurationError(f"lock(): {name}= is no option; {hint}")
    listed = entries(key)
    if any(access.function for _, access in listed):
        raise ConfigurationError(
            "n of a Limit is a number in lock(): a function would be asked about the call of a "
            "task, and a block is none"
        )
    if not listed:
        raise ConfigurationError("a lock needs at least one key, got an empty list")
    timeout = duration("timeout", timeout, zero=True)
    app = app or current_app
    keys = Keys.of([(_literal(text), access) for text, access in listed])
    begin = partial(
        Acquisition.begin,
        app,
        keys,
        name="lock()",
        ttl=optional_duration("ttl", ttl),
        timeout=timeout,
    )
    return Block(app, keys, timeout, begin)


class Block:
    """What :func:`lock` returns: for ``with`` and ``async with``, by as many at once as you like.

    Code that can use neither has :meth:`acquire` and :meth:`release`. Those belong to the object:
    it is acquired once at a time, and any thread may release it.
    """

    def __init__(self, app: Any, keys: Keys, timeout: float, begin: Begin) -> None:
        self._app = app
        self._keys = keys
        self._timeout = timeout
        self._begin = begin
        self._entered: Entered[AbstractContextManager[Lease]] = Entered()
        self._awaited: Entered[AbstractAsyncContextManager[Lease]] = Entered()
        self._one_owner = threading.Lock()  # from acquire() to release()
        self._acquired: list[AbstractContextManager[Lease]] = []

    def acquire(self) -> Lease:
        """Take the lock, as ``with`` does.

        The lease is renewed until it is released, as long as this process lives. At the exit of the
        process it is not released, and expires. It is not the current lease: pass it on, as in
        ``admit(connection, lease)``. The key is not re-entrant under it.

        Raises what :func:`lock` does, and :exc:`RuntimeError` if it is already acquired.
        """
        if not self._one_owner.acquire(blocking=False):
            raise RuntimeError(
                "this lock() is acquired already: another owner needs a lock() of its own"
            )
        try:
            block = self._block(current=False)
            lease = block.__enter__()
            self._acquired.append(block)
        except BaseException:
            self._one_owner.release()
            raise
        _UNRELEASED.add(self)
        return lease

    def release(self) -> None:
        """Release the lock that :meth:`acquire` has taken, and never that of a later owner.

        Raises :exc:`RuntimeError` if it is not acquired, or is already released, and
        :exc:`~celery_dlock.LockLost` if it was lost.
        """
        try:
            block = self._acquired.pop()  # in one step, so one of two threads has it
        except IndexError:
            raise RuntimeError("this lock() is not acquired, or is released already") from None
        _UNRELEASED.discard(self)
        try:
            block.__exit__(None, None, None)
        finally:
            self._one_owner.release()

    def locked(self) -> bool:
        """Whether this lock could not be taken now: somebody holds the key, in whatever process.

        Of a :class:`~celery_dlock.Limit` whether all its slots are taken, and of a
        :class:`~celery_dlock.Shared` whether the key is held for writing. A lock that the running
        code holds counts, too. It asks the store once and changes nothing. The answer may be
        outdated at once: to act on it, take the lock with ``timeout=0``.

        Raises :exc:`~celery_dlock.BackendUnavailable` if the store does not answer.
        """
        store = runtime(real_app(self._app)).backend
        access_by_key = {**self._keys.access, **self._keys.reads}
        states, now = store.look(list(access_by_key)), store.now()
        return not all(
            free(ask_with_limit(drop_expired(state, now), access.mode, access.limit), access.mode)
            for state, access in zip(states, access_by_key.values(), strict=True)
        )

    async def alocked(self) -> bool:
        """The same as :meth:`locked` for a coroutine: it does not block the event loop."""
        from celery_dlock.tasks.event_loop import Calls

        return await Calls().call(self.locked)

    def __repr__(self) -> str:
        keys = ", ".join(map(repr, self._keys.own))
        blocks = len(self._entered) + len(self._awaited) + len(self._acquired)
        state = f"held by {blocks} of its blocks" if blocks else "not held by it"
        return f"<lock() of {keys}: {state}>"

    def __enter__(self) -> Lease:
        block = self._block()
        lease = block.__enter__()
        self._entered.add(block, _caller())
        return lease

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return self._entered.take(_caller()).__exit__(kind, error, traceback)

    async def __aenter__(self) -> Lease:
        frame = _caller()
        block = _locked_async_block(self._app, self._begin)
        lease = await block.__aenter__()
        self._awaited.add(block, frame)
        return lease

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        return await self._awaited.take(_caller()).__aexit__(kind, error, traceback)

    def _block(self, *, current: bool = True) -> AbstractContextManager[Lease]:
        if self._timeout:
            _refuse_to_block_a_loop(self._timeout)
        return locked_block(self._begin, current=current, raises=True)


#: Acquired blocks, which the garbage collector must not release while only their lease is kept.
_UNRELEASED: set[Block] = set()


def _caller() -> FrameType | None:
    """The frame that has called the caller of this function, or awaits it."""
    frame = inspect.currentframe()
    caller = None if frame is None else frame.f_back
    return None if caller is None else caller.f_back


def _literal(text: object) -> str:
    """The key *text*, in its canonical form; a template is an error, as nobody fills in a field."""
    if not isinstance(text, str):
        raise ConfigurationError(f"lock() takes a text, or a list of them, got {quoted(text)}")
    field = _FIELD.search(text)
    if field is None:
        return canonical(text)
    raise ConfigurationError(
        f"lock() takes a key as it is, so {field[0]} in {quoted(text)} would be the same for all: "
        f"put an f before the quotes (write %7B for a literal brace)"
    )


def _refuse_to_block_a_loop(timeout: float) -> None:
    """Raises also where the key is free, for else it would be noticed only in production."""
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
def locked_block(begin: Begin, *, current: bool = True, raises: bool = False) -> Iterator[Lease]:
    """Run the block under the keys of an acquisition; its lease is *current* in the running code.

    If the block ends without an error and has lost a lock, it *raises* that, unless it is a direct
    call, whose result stands as that of a task. If it is nested and the code around it has released
    a key first, it always does.
    """
    acquisition = begin()
    try:
        while (pause := acquisition.ask()) is not None:
            time.sleep(pause)
        lease = acquisition.lease()
        with holding(lease, acquisition.runtime.backend) if current else nullcontext():
            lease.check()  # the process may have been paused since it asked
            yield lease
            acquisition.check_outer(raises=raises)
    except StaleFencingToken as error:
        acquisition.tell_refused(error)
        raise
    finally:
        try:
            acquisition.hold.give_back(Outcome.OVER)
        except BaseException:
            # A soft time limit may have interrupted this, and the keeper would renew for ever.
            acquisition.hold.give_back(Outcome.OVER)
            raise
    if raises:
        acquisition.check_own()


@asynccontextmanager
async def _locked_async_block(app: Any, begin: Begin) -> AsyncIterator[Lease]:
    """The block of a coroutine. If it is cancelled, a thread releases what the store granted."""
    import asyncio

    from celery_dlock.tasks.event_loop import Calls

    calls = Calls()
    await calls.call(runtime, real_app(app))  # the first use loads the driver
    acquisition = begin()
    release = partial(acquisition.hold.give_back, Outcome.OVER)
    try:
        while (pause := await calls.call(acquisition.ask)) is not None:
            await asyncio.sleep(pause)
        lease = acquisition.lease()
        await calls.call(lease.check)
    except BaseException:
        calls.end(release)
        raise
    try:
        with holding(lease, acquisition.runtime.backend):
            yield lease
            acquisition.check_outer(raises=True)
    except StaleFencingToken as error:
        acquisition.tell_refused(error)
        raise
    finally:
        await calls.end(release)
    acquisition.check_own()
