"""Uses a store through a process of its own, for one that forks and must have no connection.

A gRPC channel leaves threads and locks behind that a forked child cannot use. A prefork worker
forks as long as it lives, so it leaves the store to a helper: started with a fresh interpreter,
told each call through a socket, one at a time. It ends when that socket does. Forked children have
the socket, too, until they close it here; so it ends with the process that it helps, however that
ends.
"""

from __future__ import annotations

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, ParamSpec, Self, TypeVar

from celery_dlock import forking
from celery_dlock.core.state import Claim, KeyState, RenewVerdict
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions, DeadMessage, LockBackend, NoteStore

P = ParamSpec("P")
R = TypeVar("R")

#: Seconds for a call, however many answers of the store it needs; then the helper hangs.
ANSWER_WITHIN = 60.0

#: Seconds for a helper to end by itself.
END_WITHIN = 10.0

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from celery_dlock.stores.subprocess import serve; serve(int(sys.argv[1]))"
)


class Helper:
    """The process, and this end of the socket."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        try:
            with theirs:
                command = [sys.executable, "-c", _PROGRAM, str(theirs.fileno())]
                # In a session of its own: a Ctrl-C is for the worker, which ends the helper last.
                self._process = subprocess.Popen(
                    [*command, json.dumps(sys.path)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            ours.close()
            raise
        self._connection = Connection(ours.detach())

    @property
    def pid(self) -> int:
        return self._process.pid

    def build(self, recipe: bytes) -> None:
        """Tell it which store to use."""
        self._connection.send_bytes(recipe)

    def ask(self, name: str, args: tuple[Any, ...], options: dict[str, Any]) -> Any:
        """What the store answers. Raises :exc:`OSError` or :exc:`EOFError` when nobody does."""
        self._connection.send((name, args, options))
        if not self._connection.poll(ANSWER_WITHIN):
            raise TimeoutError("no answer in time")
        return self._connection.recv()

    def let_go(self) -> None:
        """Close this end. In a forked child that is all there is to do."""
        self._connection.close()

    def end(self, within: float) -> None:
        """Return when it is gone."""
        self.let_go()
        try:
            self._process.wait(within)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def _asked(method: Callable[P, R]) -> Callable[P, R]:
    """*method* of the store, through the helper."""

    def ask(*args: P.args, **options: P.kwargs) -> R:
        backend = args[0]
        assert isinstance(backend, HelperBackend)
        answer: R = backend.ask(method.__name__, *args[1:], **options)
        return answer

    return ask


class HelperBackend(NoteStore):
    """A store that is used through a helper; see :func:`through_helper`."""

    def __init__(self, store: type[LockBackend], url: str, options: BackendOptions) -> None:
        store.from_url(url, options)  # what is wrong with it shows here, and not at a message
        self._recipe = pickle.dumps((store, url, options))
        self._mutex = threading.Lock()
        self._helper: Helper | None = None
        forking.tell(self)

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        raise NotImplementedError("it takes a store to help with: through_helper()")

    apply = _asked(LockBackend.apply)
    lease_of = _asked(LockBackend.lease_of)
    certain = _asked(LockBackend.certain)
    now = _asked(LockBackend.now)
    sweep = _asked(LockBackend.sweep)
    message = _asked(LockBackend.message)
    dead = _asked(LockBackend.dead)
    count_dead = _asked(LockBackend.count_dead)
    swap = _asked(LockBackend.swap)
    swapped = _asked(LockBackend.swapped)
    notes = _asked(NoteStore.notes)
    peek = _asked(LockBackend.peek)
    position = _asked(LockBackend.position)
    keys = _asked(LockBackend.keys)

    # What any collection says goes over as one that can be pickled.

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        return _asked(LockBackend.renew)(self, list(claims))

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        return _asked(LockBackend.parked)(self, set(task_ids))

    def dead_of(self, task_ids: Collection[str]) -> list[DeadMessage]:
        return _asked(LockBackend.dead_of)(self, set(task_ids))

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        return _asked(NoteStore.note)(self, key, token, dict(notes))

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        return _asked(LockBackend.look)(self, list(keys))

    def close(self) -> None:
        """End the helper; the next call starts another one."""
        with self._mutex:
            self._end(END_WITHIN)

    def ask(self, name: str, *args: Any, **options: Any) -> Any:
        """What the store answers to the operation *name*."""
        with self._mutex:
            try:
                if self._helper is None:
                    with _starting.mutex:
                        self._helper = Helper()
                    self._helper.build(self._recipe)
                succeeded, answer = self._helper.ask(name, args, options)
            except (OSError, EOFError) as exc:
                self._end(within=0)
                raise BackendUnavailable(
                    f"the helper process of the lock store has ended ({exc}): the next call starts "
                    "another one"
                ) from exc
            except BaseException:  # a time limit strikes: the answer must not be the next call's
                self._end(within=0)
                raise
        if not succeeded:
            raise answer
        return answer

    def _end(self, within: float) -> None:
        helper, self._helper = self._helper, None
        if helper is not None:
            helper.end(within)

    def after_fork_in_child(self) -> None:
        self._mutex = threading.Lock()
        helper, self._helper = self._helper, None
        if helper is not None:
            forking.keep(helper)  # a process that is collected is waited for, and it is not ours
            helper.let_go()


def through_helper(store: type[LockBackend], url: str, options: BackendOptions) -> LockBackend:
    """The *store* at *url*, for a process that forks; what it promises is what that one does.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` as its ``from_url`` does.
    """
    names = ("traits", "guarantee", "largest_message", "replicates")
    promises = {name: getattr(store, name) for name in names}
    backend: LockBackend = type(store.__name__, (HelperBackend,), promises)(store, url, options)
    return backend


class _Starting:
    """No fork while a helper is started: the child would have a socket that nobody closes."""

    def __init__(self) -> None:
        self.mutex = threading.Lock()
        forking.tell(self)

    def before_fork(self) -> None:
        self.mutex.acquire()

    def after_fork_in_parent(self) -> None:
        self.mutex.release()

    def after_fork_in_child(self) -> None:
        self.mutex = threading.Lock()


_starting = _Starting()
os.register_at_fork(before=_starting.before_fork, after_in_parent=_starting.after_fork_in_parent)


def serve(descriptor: int) -> None:
    """What the process does: use a store as it is told at the socket *descriptor*, until that ends.

    What comes first says how the store is built.
    """
    # Whoever stops a whole service means the worker, which has something to say until its end.
    for one in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(one, signal.SIG_IGN)
    with Connection(descriptor) as connection, suppress(OSError, EOFError):
        store, url, options = pickle.loads(connection.recv_bytes())
        backend: LockBackend = store.from_url(url, options)
        try:
            while True:
                name, args, options = connection.recv()
                connection.send_bytes(_answer(backend, name, args, options))
        finally:
            backend.close()


def _answer(
    backend: LockBackend, name: str, args: tuple[Any, ...], options: dict[str, Any]
) -> bytes:
    try:
        return pickle.dumps((True, getattr(backend, name)(*args, **options)))
    except Exception as exc:
        with suppress(Exception):
            return pickle.dumps((False, exc))
        error = BackendUnavailable(f"the lock store failed in its helper process: {exc!r}")
        return pickle.dumps((False, error))
