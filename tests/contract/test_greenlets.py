"""Stores in a process that gevent or eventlet has patched: who waits there keeps nobody waiting."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from tests.services.etcd import EtcdServer
from tests.services.redis_nodes import RedisNodes
from tests.services.server_process import ServerProcess
from tests.services.zookeeper import ZooKeeperServer

PROGRAM = """
import sys
library, url, prefix = sys.argv[1:]
if library == "gevent":
    from gevent import monkey
    monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
import threading, time
from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions
from celery_dlock.testing.contract.words import claim, running

driver = {"timeout": 1} if url.startswith("etcd") else {}
if url.startswith("zookeeper"):
    from celery_dlock.stores.zookeeper import client
    client.ANSWER_TIMEOUT = 1.0
store = open_backend(url, BackendOptions(prefix, ttl=5.0, driver=driver))
ticks = []

def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.01)

def work(number):
    for turn in range(5):
        mine = claim(f"task {turn}", key=f"key {number}", ttl=5)
        running(store.enter(mine))
        assert store.renew([mine])[0]
        store.leave(mine, Outcome.DONE)
    done.append(number)

done = []
threading.Thread(target=tick, daemon=True).start()
workers = [threading.Thread(target=work, args=(n,)) for n in range(10)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert sorted(done) == list(range(10)), done
if url.startswith("zookeeper"):
    assert store.certain(0)
    handler = store._rows._client.session().kazoo.handler.name
    assert library in handler, handler
print("paused?", flush=True)
sys.stdin.readline()
begun = len(ticks)
try:
    store.enter(claim("a"))
except BackendUnavailable:
    print("fine" if len(ticks) - begun > 10 else "nothing else ran meanwhile")
"""


def program(library: str, url: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-W", "ignore", "-c", PROGRAM, library, url, f"t-{uuid.uuid4().hex}"]
    pipe = subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)


def goes_on(library: str, url: str, *servers: ServerProcess) -> None:
    """Something else runs while one greenlet waits for *servers* that stand still."""
    with program(library, url) as child:
        assert child.stdout is not None
        ready = child.stdout.readline()
        for server in servers:
            server.pause()
        out, err = child.communicate("yes\n", timeout=60)

    assert (ready, out) == ("paused?\n", "fine\n"), err


@pytest.mark.server("redis")
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_go_on_while_one_waits(own_redis_nodes: RedisNodes, library: str) -> None:
    goes_on(library, own_redis_nodes.url, *own_redis_nodes[1:4])


@pytest.mark.server("zookeeper")
@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_greenlets_go_on_meanwhile(own_zookeeper_server: ZooKeeperServer, library: str) -> None:
    goes_on(library, own_zookeeper_server.url, own_zookeeper_server)


@pytest.mark.server("etcd")
def test_greenlets_go_on_while_one_waits_for_etcd(own_etcd_server: EtcdServer) -> None:
    goes_on("gevent", own_etcd_server.url, own_etcd_server)


def test_eventlet_is_refused_over_etcd() -> None:
    """gRPC gives way to greenlets under gevent, and knows no eventlet."""
    with program("eventlet", "etcd://127.0.0.1:1") as child:
        _, err = child.communicate(timeout=60)

    assert "use gevent" in err
