"""Where the process is patched: gRPC gives way to greenlets under gevent, and knows no eventlet."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.services.etcd import EtcdServer

GEVENT = """
from gevent import monkey
monkey.patch_all()

import sys, time
import gevent
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.etcd.store import EtcdBackend
from celery_dlock.core.state import Outcome
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing.contract.words import claim, running

store = EtcdBackend.from_url(sys.argv[1], BackendOptions(driver={"timeout": 1}))
EtcdBackend.from_url(sys.argv[1], BackendOptions())  # may be built again

def work(number):
    for turn in range(10):
        mine = claim(f"task {number}", nonce=str(turn), key=f"key {number}")
        running(store.enter(mine))
        assert store.renew([mine])[0]
        store.leave(mine, Outcome.OVER)
    return True

workers = [gevent.spawn(work, number) for number in range(20)]
gevent.joinall(workers, raise_error=True, timeout=30)
assert all(worker.value for worker in workers)
print("ready", flush=True)
sys.stdin.readline()  # the server hangs now

ticks = []
def tick():
    while True:
        ticks.append(time.monotonic())
        gevent.sleep(0.01)

ticking = gevent.spawn(tick)
try:
    store.enter(claim("a"))
except BackendUnavailable:
    print(len(ticks), flush=True)
"""

EVENTLET = """
import eventlet
eventlet.monkey_patch()

from celery_dlock.stores.base import BackendOptions
from celery_dlock.errors import ConfigurationError
from celery_dlock.registry import open_backend

try:
    open_backend("etcd://127.0.0.1:1", BackendOptions())
except ConfigurationError as exc:
    print(exc)
"""


@pytest.mark.server("etcd")
def test_greenlets_share_the_store_and_wait_without_stopping_each_other(
    own_etcd_server: EtcdServer,
) -> None:
    command = [sys.executable, "-c", GEVENT, own_etcd_server.url]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        own_etcd_server.pause()
        try:
            process.stdin.write("\n")
            process.stdin.flush()
            ticks = process.stdout.readline()
        finally:
            own_etcd_server.resume()

    assert int(ticks) > 20


def test_eventlet_is_refused() -> None:
    command = [sys.executable, "-W", "ignore", "-c", EVENTLET]
    done = subprocess.run(command, capture_output=True, text=True, check=True)

    assert "use gevent" in done.stdout
