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
import socket
import subprocess
import sys
import threading
from collections.abc import Collection, Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any, Self
from weakref import WeakSet

from celery_dlock.backends.base import (
    BackendOptions,
    Burial,
    KeyPage,
    LockBackend,
    Reply,
    Swept,
)
from celery_dlock.core.state import (
    Cause,
    Claim,
    EnterVerdict,
    KeyState,
    LeaveVerdict,
    Outcome,
    RenewVerdict,
)
from celery_dlock.errors import BackendUnavailable

#: Seconds for a call, however many answers of the store it needs; then the helper hangs.
ANSWER_WITHIN = 60.0

#: Seconds for a helper to end by itself.
END_WITHIN = 10.0

_PROGRAM = (
    "import json, sys; sys.path[:] = json.loads(sys.argv[2]); "
    "from celery_dlock.backends.helping import serve; serve(int(sys.argv[1]))"
)


class Helper:
    """The process, and this end of the socket."""

    def __init__(self) -> None:
        here, there = socket.socketpair()
        try:
            with there:
                command = [sys.executable, "-c", _PROGRAM, str(there.fileno())]
                # In a session of its own: a Ctrl-C is for the worker, which ends the helper last.
                self._process = subprocess.Popen(
                    [*command, json.dumps(sys.path)],
                    stdin=subprocess.DEVNULL,
                    pass_fds=[there.fileno()],
                    start_new_session=True,
                )
        except BaseException:
            here.close()
            raise
        self._connection = Connection(here.detach())

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


class HelperBackend(LockBackend):
    """A store that is used through a helper; see :func:`through_helper`."""

    def __init__(self, store: type[LockBackend], url: str, options: BackendOptions) -> None:
        store.from_url(url, options)  # what is wrong with it shows here, and not at a message
        self._recipe = pickle.dumps((store, url, options))
        self._mutex = threading.Lock()
        self._helper: Helper | None = None
        _forks.backends.add(self)

    @classmethod
    def from_url(cls, url: str, options: BackendOptions) -> Self:
        raise NotImplementedError("it takes a store to help with: through_helper()")

    def enter(self, claim: Claim, message: bytes | None = None) -> Reply[EnterVerdict]:
        found: Reply[EnterVerdict] = self._ask("enter", claim, message)
        return found

    def leave(
        self, claim: Claim, outcome: Outcome, message: bytes | None = None
    ) -> Reply[LeaveVerdict]:
        found: Reply[LeaveVerdict] = self._ask("leave", claim, outcome, message)
        return found

    def renew(self, claims: Sequence[Claim]) -> list[RenewVerdict]:
        found: list[RenewVerdict] = self._ask("renew", list(claims))
        return found

    def lease_of(self, ttl: int) -> int:
        return int(self._ask("lease_of", ttl))

    def certain(self, timeout: float) -> bool:
        return bool(self._ask("certain", timeout))

    def now(self) -> int:
        return int(self._ask("now"))

    def reap(self, key: str) -> Reply[None]:
        found: Reply[None] = self._ask("reap", key)
        return found

    def sweep(self, limit: int = 100) -> Swept:
        found: Swept = self._ask("sweep", limit)
        return found

    def parked(self, task_ids: Collection[str]) -> list[tuple[str, str]]:
        found: list[tuple[str, str]] = self._ask("parked", set(task_ids))
        return found

    def cancel(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep("cancel", key, task)

    def bury(self, key: str, task: str, cause: Cause) -> Reply[bool]:
        return self._upkeep("bury", key, task, cause)

    def hand_back(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep("hand_back", key, task)

    def replay(self, key: str, task: str) -> Reply[bool]:
        return self._upkeep("replay", key, task)

    def dead(self, limit: int = 100) -> list[Burial]:
        found: list[Burial] = self._ask("dead", limit)
        return found

    def note(self, key: str, token: int, notes: Mapping[str, bytes | None]) -> bool:
        return bool(self._ask("note", key, token, dict(notes)))

    def notes(self, key: str) -> dict[str, bytes]:
        found: dict[str, bytes] = self._ask("notes", key)
        return found

    def peek(self, key: str) -> KeyState:
        found: KeyState = self._ask("peek", key)
        return found

    def keys(self, cursor: str = "", limit: int = 100, *, waiting: bool = False) -> KeyPage:
        found: KeyPage = self._ask("keys", cursor, limit, waiting=waiting)
        return found

    def look(self, keys: Sequence[str]) -> list[KeyState]:
        found: list[KeyState] = self._ask("look", list(keys))
        return found

    def close(self) -> None:
        """End the helper; the next call starts another one."""
        with self._mutex:
            self._end(END_WITHIN)

    def _upkeep(self, name: str, *args: Any) -> Reply[bool]:
        found: Reply[bool] = self._ask(name, *args)
        return found

    def _ask(self, name: str, *args: Any, **options: Any) -> Any:
        with self._mutex:
            try:
                if self._helper is None:
                    with _forks.mutex:
                        self._helper = Helper()
                    self._helper.build(self._recipe)
                succeeded, answer = self._helper.ask(name, args, options)
            except (OSError, EOFError) as exc:
                self._end(within=0)
                raise BackendUnavailable(f"the process that uses the store is gone: {exc}") from exc
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

    def forget(self) -> None:
        """In a forked child: the helper is the parent's."""
        self._mutex = threading.Lock()
        helper, self._helper = self._helper, None
        if helper is not None:
            _forks.of_parents.append(helper)
            helper.let_go()


def through_helper(store: type[LockBackend], url: str, options: BackendOptions) -> LockBackend:
    """The *store* at *url*, for a process that forks; what it promises is what that one does.

    Raises :exc:`~celery_dlock.errors.ConfigurationError` as its ``from_url`` does.
    """
    names = ("traits", "guarantee", "largest_message", "replicates")
    promises = {name: getattr(store, name) for name in names}
    found: LockBackend = type(store.__name__, (HelperBackend,), promises)(store, url, options)
    return found


class _Forks:
    """What there is to do around a fork, for all helpers of this process."""

    def __init__(self) -> None:
        self.backends: WeakSet[HelperBackend] = WeakSet()
        #: Kept, because a process that is collected is waited for, and these are not ours.
        self.of_parents: list[Helper] = []
        # No fork while a helper is started: the child would have a socket that nobody closes.
        self.mutex = threading.Lock()

    def before(self) -> None:
        self.mutex.acquire()

    def after_in_parent(self) -> None:
        self.mutex.release()

    def after_in_child(self) -> None:
        self.mutex = threading.Lock()
        for backend in tuple(self.backends):
            backend.forget()


_forks = _Forks()
os.register_at_fork(
    before=_forks.before,
    after_in_parent=_forks.after_in_parent,
    after_in_child=_forks.after_in_child,
)
