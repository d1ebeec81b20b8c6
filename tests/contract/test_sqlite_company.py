"""Others at the same file: processes that create it, lock it, die over it, and a full disk."""

from __future__ import annotations

import os
import resource
import signal
import sqlite3
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.state import Busy, Left, NotHeld, Outcome
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.forking import notice
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.testing.contract.processes import FORK, answer, child
from celery_dlock.testing.contract.words import QUEUE, claim, running
from tests.services.forked import alone, fork_unheard, in_a_forked_child


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "locks.db"


def store(path: Path, **driver: Any) -> SqliteBackend:
    return SqliteBackend.from_url(f"sqlite:///{path}", BackendOptions(driver=driver))


def test_a_file_locked_by_another_process_is_unavailable_after_the_timeout(path: Path) -> None:
    backend = store(path, timeout=0.05)
    backend.enter(claim("a"))
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")

    with pytest.raises(BackendUnavailable, match="locked"):
        backend.enter(claim("b"))

    other.execute("ROLLBACK")
    other.close()
    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    backend.close()


@pytest.mark.parametrize("how", ["deleted", "replaced by a backup"])
def test_a_file_that_is_gone_is_left_by_all_who_have_it_open(path: Path, how: str) -> None:
    # Given two processes, of which one has a lock
    one, other = store(path), store(path)
    running(other.enter(claim("before")))
    backup = path.with_suffix(".old")
    with sqlite3.connect(path) as source, sqlite3.connect(backup) as copy:
        source.backup(copy)
    running(one.enter(claim("a", key="another")))
    # When the file goes
    for kind in ("", "-wal", "-shm"):
        Path(f"{path}{kind}").unlink(missing_ok=True)
    if how != "deleted":
        backup.replace(path)
    # Then both use the one that is there now, and the holder is told
    assert one.renew([claim("a", key="another")]) == [NotHeld()]
    running(other.enter(claim("b", key="another")))
    assert isinstance(one.enter(claim("c", key="another")).verdict, Busy)
    assert bool(one.peek("key").holders) is (how != "deleted")
    one.close()
    other.close()


def test_a_folder_that_vanishes_is_unavailable(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    backend = store(tmp_path / "folder" / "locks.db")
    (tmp_path / "folder").rmdir()

    with pytest.raises(BackendUnavailable, match="unable to open"):
        backend.enter(claim("a"))


def test_an_operation_that_is_interrupted_has_not_happened(path: Path) -> None:
    backend = store(path)
    before = running(backend.enter(claim("a"))).token

    def interrupted() -> int:
        raise KeyboardInterrupt

    clock, backend._now = backend._now, interrupted
    with pytest.raises(KeyboardInterrupt):
        backend.leave(claim("a"), Outcome.OVER)
    backend._now = clock

    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    assert isinstance(backend.leave(claim("a"), Outcome.OVER).verdict, Left)
    assert running(backend.enter(claim("b"))).token > before
    backend.close()


def test_tokens_of_a_new_file_are_larger_than_those_of_the_one_that_was_lost(path: Path) -> None:
    backend = store(path)
    before = running(backend.enter(claim("a"))).token
    path.unlink()

    assert running(backend.enter(claim("b"))).token > before
    backend.close()


def first_of_many(pipe: Any, path: Path, number: int) -> None:
    """In a child: use a file that others create in the same moment."""
    pipe.recv()
    backend = store(path)
    pipe.send(backend.enter(claim("a", key=str(number))).verdict)
    backend.close()


def test_several_processes_may_create_the_file_at_once(path: Path) -> None:
    for turn in range(5):
        fresh = path.with_name(f"{turn}.db")
        with ExitStack() as stack:
            pipes = [stack.enter_context(child(FORK, first_of_many, fresh, n)) for n in range(4)]
            for pipe in pipes:
                pipe.send("go")
            verdicts = [answer(pipe) for pipe in pipes]

        assert len({verdict.token for verdict in verdicts}) == 4


#: A token that is not committed.
NEVER = 2**60


def die_while_writing(pipe: Any, path: Path) -> None:
    """In a child: be killed between a write and its commit."""
    with store(path)._file.transaction() as db:
        db.execute("UPDATE token SET next = ?", (NEVER,))
        pipe.send("written")
        os.kill(os.getpid(), signal.SIGKILL)


def test_a_process_killed_while_it_writes_leaves_the_file_usable(path: Path) -> None:
    backend = store(path)
    running(backend.enter(claim("a")))

    with child(FORK, die_while_writing, path) as pipe:
        assert answer(pipe) == "written"

    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    assert running(backend.enter(claim("b", key="other"))).token < NEVER
    backend.close()


def write_to_a_full_disk(pipe: Any, path: Path) -> None:
    """In a child: go on when no file may grow any more, as on a full disk."""
    backend = store(path)
    backend.enter(claim("a"))
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16_384, resource.RLIM_INFINITY))
    try:
        backend.enter(claim("b", wait=QUEUE), b"x" * 100_000)
    except BackendUnavailable as exc:
        pipe.send(str(exc))
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    pipe.send(backend.peek("key"))
    pipe.send(backend.leave(claim("a"), Outcome.OVER).verdict)


def test_a_full_disk_is_unavailable_and_changes_nothing(path: Path) -> None:
    with child(FORK, write_to_a_full_disk, path) as pipe:
        assert str(path) in answer(pipe)
        state = answer(pipe)
        assert [h.task for h in state.holders] == ["a"]
        assert state.waiting == ()
        assert answer(pipe) == Left(carried=False)


def test_nothing_of_the_connection_is_carried_over_a_fork(path: Path) -> None:
    backend = store(path)
    backend.enter(claim("a"))

    with child(FORK, tell_connection, backend) as pipe:
        assert answer(pipe) is None

    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    backend.close()


def test_a_file_that_was_open_over_a_fork_is_refused_in_the_child(path: Path) -> None:
    alone(_is_refused_after_a_fork, path)


def _is_refused_after_a_fork(path: Path) -> None:
    backend, closed = store(path), store(path.with_name("closed.db"))
    backend.enter(claim("a"))

    def child() -> None:
        notice()
        for again in (backend, store(path)):
            with pytest.raises(ConfigurationError, match="locks only after the fork"):
                again.enter(claim("b"))
        running(closed.enter(claim("b")))
        closed.close()

    in_a_forked_child(child, fork_unheard)
    assert isinstance(backend.enter(claim("b")).verdict, Busy)
    backend.close()


def tell_connection(pipe: Any, backend: SqliteBackend) -> None:
    pipe.send(backend._file._connection)
