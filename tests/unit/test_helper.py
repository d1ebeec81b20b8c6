"""A store that is used through a helper does what it does by itself, whatever becomes of either."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from celery_dlock.beat.tick_ledger import noting
from celery_dlock.core.operations import Replay
from celery_dlock.core.state import Cause, Left, Outcome, Renewed
from celery_dlock.errors import BackendUnavailable, ConfigurationError
from celery_dlock.registry import open_backend
from celery_dlock.stores import subprocess as helper
from celery_dlock.stores.base import BackendOptions, NoteStore
from celery_dlock.stores.sql.sqlite import SqliteBackend
from celery_dlock.stores.subprocess import HelperBackend, through_helper
from celery_dlock.testing.contract.words import QUEUE, claim, park, running, woken
from tests.services.forked import in_a_forked_child
from tests.services.until import until


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/locks.db"


@pytest.fixture
def helped(url: str) -> Iterator[HelperBackend]:
    backend = through_helper(SqliteBackend, url, BackendOptions())
    assert isinstance(backend, HelperBackend)
    yield backend
    backend.close()


@pytest.fixture
def direct(url: str) -> Iterator[NoteStore]:
    backend = noting(open_backend(url, BackendOptions()))
    yield backend
    backend.close()


def process_of(backend: HelperBackend) -> psutil.Process:
    assert backend._helper is not None
    return psutil.Process(backend._helper.pid)


def test_it_promises_what_the_store_promises(helped: HelperBackend) -> None:
    for name in ("traits", "guarantee", "largest_message", "replicates"):
        assert getattr(helped, name) == getattr(SqliteBackend, name)


def test_every_operation_is_that_of_the_store(helped: HelperBackend, direct: NoteStore) -> None:
    holder = claim("a", wait=QUEUE)
    token = running(helped.enter(holder)).token
    assert isinstance(helped.renew([holder])[0], Renewed)
    park(helped, "b:0:0")
    assert helped.lease_of(5) == direct.lease_of(5)
    assert helped.certain(0.1) is True
    assert direct.now() <= helped.now() <= direct.now()
    assert helped.parked(["b"]) == direct.parked(["b"]) == [("key", "b:0:0")]
    assert helped.peek("key") == direct.peek("key")
    assert helped.peek("key").holders[0].token == token
    assert helped.reap("key").wakes == ()
    assert helped.sweep(10).wakes == ()

    reply = helped.leave(holder, Outcome.DONE)

    assert isinstance(reply.verdict, Left)
    assert woken(reply) == ["b:0:0"]
    assert helped.hand_back("key", "b:0:0").verdict is True
    assert helped.cancel("key", "b:0:0").verdict is True
    assert helped.dead_letter("key", "b:0:0", Cause.UNREADABLE).verdict is False
    assert helped.apply(Replay("key", "nobody")).verdict is False
    assert helped.dead() == []
    assert helped.note("key", 5, {"a": b"a"}) is True
    assert helped.note("key", 4, {"a": None}) is False
    assert helped.notes("key") == direct.notes("key") == {"a": b"a"}

    running(helped.enter(claim("a", key="other")))
    page = helped.keys(limit=1)
    assert (page.keys, helped.keys(page.cursor or "").keys) == (("key",), ("other",))
    assert helped.keys(waiting=True).keys == direct.keys(waiting=True).keys
    assert helped.look(("key", "other")) == direct.look(("key", "other"))
    with pytest.raises(ValueError, match="cursor"):
        helped.keys("nonsense")


def test_nothing_starts_before_its_use_and_a_wrong_url_is_told(helped: HelperBackend) -> None:
    assert helped._helper is None
    with pytest.raises(ConfigurationError):
        through_helper(SqliteBackend, "sqlite://locks.db", BackendOptions())


def test_what_the_store_raises_is_raised_here_and_the_helper_stays(helped: HelperBackend) -> None:
    helped.sweep()
    pid = process_of(helped).pid

    with pytest.raises(BackendUnavailable, match=r"locks\.db"):
        helped.sweep("many")  # type: ignore[arg-type]

    helped.sweep()
    assert process_of(helped).pid == pid


def test_a_helper_that_dies_fails_one_call_and_is_started_again(helped: HelperBackend) -> None:
    running(helped.enter(claim("a")))
    process_of(helped).kill()

    with pytest.raises(BackendUnavailable, match="the next call starts another one"):
        helped.sweep()

    assert isinstance(helped.leave(claim("a"), Outcome.OVER).verdict, Left)


def test_a_hanging_helper_is_left(helped: HelperBackend, monkeypatch: pytest.MonkeyPatch) -> None:
    helped.sweep()
    stuck = process_of(helped)
    stuck.suspend()
    monkeypatch.setattr(helper, "ANSWER_WITHIN", 0.2)

    with pytest.raises(BackendUnavailable):
        helped.sweep()

    monkeypatch.undo()
    assert not stuck.is_running()
    helped.sweep()


def test_an_interrupted_call_leaves_no_answer_to_the_next_one(
    helped: HelperBackend, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(helped.enter(claim("a")))

    class Interrupted(BaseException):
        pass

    def interrupt(number: int, frame: object) -> None:
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    process_of(helped).suspend()
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    try:
        with pytest.raises(Interrupted):
            helped.peek("key")
    finally:
        signal.signal(signal.SIGALRM, before)

    assert helped.lease_of(7) == 7


def test_threads_share_it(helped: HelperBackend) -> None:
    def work(number: int) -> int:
        mine = claim("a", key=f"key {number}")
        token = running(helped.enter(mine)).token
        assert helped.lease_of(number) == number
        assert isinstance(helped.leave(mine, Outcome.OVER).verdict, Left)
        return token

    with ThreadPoolExecutor(8) as pool:
        assert len(set(pool.map(work, range(40)))) == 40


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_a_helper_of_its_own(helped: HelperBackend) -> None:
    running(helped.enter(claim("a")))
    mine = process_of(helped).pid

    def child() -> None:
        running(helped.enter(claim("b", key="other")))
        assert process_of(helped).pid != mine
        helped.close()

    in_a_forked_child(child)

    assert process_of(helped).pid == mine
    assert isinstance(helped.leave(claim("a"), Outcome.OVER).verdict, Left)


def test_closing_ends_the_helper_and_it_may_be_used_again(helped: HelperBackend) -> None:
    helped.sweep()
    first = process_of(helped)

    helped.close()
    helped.close()

    assert not first.is_running()
    helped.sweep()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_for_the_whole_service_leaves_it_its_last_words(
    helped: HelperBackend, number: signal.Signals
) -> None:
    helped.sweep()
    process_of(helped).send_signal(number)

    helped.sweep()


#: Forks a child that lives on, and is killed.
PARENT = """
import os, signal, sys, time
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.subprocess import through_helper
from celery_dlock.stores.sql.sqlite import SqliteBackend

backend = through_helper(SqliteBackend, sys.argv[1], BackendOptions())
backend.sweep()
child = os.fork()
if child == 0:
    time.sleep(60)
print(backend._helper.pid, child, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_it_ends_with_its_process_though_forked_children_live_on(url: str) -> None:
    command = [sys.executable, "-c", PARENT, url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pid, child = map(int, parent.stdout.readline().split())
    try:
        until("the helper is gone", lambda: not psutil.pid_exists(pid))
        assert psutil.pid_exists(child)
    finally:
        os.kill(child, signal.SIGKILL)
