"""Connections to nodes: interrupted, answered with nonsense, shared by threads and greenlets."""

from __future__ import annotations

import gc
import random
import signal
import subprocess
import sys
import threading
import traceback
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial

import pytest

from celery_dlock.core.state import Left, Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.testing.contract.words import claim, running
from tests.contract.redlock_store import StoreOnNodes, store_on_nodes, warm
from tests.services.garbage import answering
from tests.services.redis_nodes import RedisNodes, redlock_url

pytestmark = pytest.mark.server("redis")


@pytest.fixture
def store(own_redis_nodes: RedisNodes) -> Iterator[StoreOnNodes]:
    with store_on_nodes(own_redis_nodes) as store:
        warm(store.backend)
        yield store


class Interrupted(BaseException):
    """As a time limit is: it strikes anywhere."""


def interrupt(act: Callable[[], object], seconds: float) -> None:
    """Do *act*, and let a signal strike in the middle of it, if it takes for so long."""
    acting = True

    def strike(*_: object) -> None:
        if acting:  # it may come just as the act is over
            raise Interrupted

    before = signal.signal(signal.SIGALRM, strike)
    gc.disable()  # what it calls back swallows what is raised there
    try:
        with suppress(Interrupted):
            signal.setitimer(signal.ITIMER_REAL, seconds)
            act()
            acting = False
    finally:
        acting = False
        gc.enable()
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_an_answer_to_a_question_that_was_interrupted_is_not_taken_for_the_next_ones(
    store: StoreOnNodes,
) -> None:
    dice = random.Random(1)
    for number in range(150):
        first = claim("interrupted", key=f"first {number}")
        interrupt(partial(store.backend.enter, first), dice.uniform(0.0001, 0.003))

        mine = claim("a", key=f"key {number}")
        token = running(store.backend.enter(mine)).token
        (holder,) = store.backend.peek(mine.key).holders
        assert (holder.task, holder.token) == ("a", token)
        assert isinstance(store.backend.leave(mine, Outcome.OVER).verdict, Left)


def test_a_server_that_forgot_its_scripts_gets_them_again(store: StoreOnNodes) -> None:
    for number in range(3):
        for node in store.nodes:
            with node.client() as client:
                client.script_flush()
        mine = claim("a", key=f"key {number}")
        running(store.backend.enter(mine))
        store.backend.renew([mine])
        assert isinstance(store.backend.leave(mine, Outcome.OVER).verdict, Left)


@pytest.mark.parametrize(
    "reply",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        b"+OK\r\n",
        b"$9999999999999\r\nx",
        b"-LOADING Redis is loading the dataset in memory\r\n",
        b"",
    ],
)
def test_a_minority_that_answers_nonsense_is_not_missed_and_a_majority_is_unavailable(
    own_redis_nodes: RedisNodes, reply: bytes
) -> None:
    first, second, third = (node.port for node in own_redis_nodes[:3])
    with store_on_nodes(own_redis_nodes, ports=[first, second, third]) as store:
        warm(store.backend)
        with answering(reply) as port, answering(reply) as other:
            few, many = store.another([first, second, port]), store.another([first, port, other])
            for number in range(3):
                running(few.enter(claim("a", key=f"key {number}")))
            with pytest.raises(BackendUnavailable, match="majority"):
                many.enter(claim("b"))


def test_a_password_that_a_server_quotes_is_not_repeated() -> None:
    quoting = b"-ERR unknown command 'AUTH', with args beginning with: 'hunter2'\r\n"
    with answering(quoting) as one, answering(quoting) as two, answering(quoting) as three:
        url = redlock_url([one, two, three]).replace("//", "//:hunter2@")
        store = RedlockBackend.from_url(url, BackendOptions())
        with pytest.raises(BackendUnavailable) as caught:
            store.enter(claim("a"))
        store.close()

    assert "hunter2" not in "".join(traceback.format_exception(caught.value))


def test_threads_that_share_a_store_have_connections_of_their_own(store: StoreOnNodes) -> None:
    wrong: list[object] = []

    def work(number: int) -> None:
        for turn in range(20):
            mine = claim(f"{number}", key=f"{number} {turn}")
            verdict = store.backend.enter(mine).verdict
            if not isinstance(verdict, Run):
                wrong.append(verdict)
            store.backend.leave(mine, Outcome.OVER)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert wrong == []
    for node in store.nodes:
        assert node.info("clients")["connected_clients"] <= 8 + 2 + 8


GREEN = """
import sys
library, url, prefix = sys.argv[1:]
if library == "gevent":
    from gevent import monkey
    monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
import threading, time
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.redlock.store import RedlockBackend
from celery_dlock.core.state import Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing.contract.words import claim

backend = RedlockBackend.from_url(url, BackendOptions(prefix=prefix))
ticks = []

def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.01)

def work(number):
    for turn in range(5):
        mine = claim(f"task {turn}", key=f"key {number}")
        assert isinstance(backend.enter(mine).verdict, Run)
        assert backend.renew([mine])
        backend.leave(mine, Outcome.DONE)

threading.Thread(target=tick, daemon=True).start()
workers = [threading.Thread(target=work, args=(n,)) for n in range(10)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
print("paused?", flush=True)
input()
begun = len(ticks)
try:
    backend.enter(claim("a"))
except BackendUnavailable:
    pass
else:
    raise AssertionError("it answered")
assert len(ticks) - begun > 10, "nothing else ran meanwhile"
print("fine")
"""


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_go_on_while_one_waits_for_nodes(
    store: StoreOnNodes, own_redis_nodes: RedisNodes, library: str
) -> None:
    arguments = [sys.executable, "-c", GREEN, library, store.url, f"test-{uuid.uuid4().hex}"]
    with subprocess.Popen(
        arguments, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        ready = child.stdout.readline()
        for node in own_redis_nodes[1:4]:
            node.pause()
        out, err = child.communicate("yes\n", timeout=60)

    assert (ready, out) == ("paused?\n", "fine\n"), err
