"""The store in a process that is patched by gevent or eventlet: nothing there may block it all."""

from __future__ import annotations

import subprocess
import sys
import uuid

import pytest

from tests.services.ports import free_ports
from tests.services.zookeeper import ZooKeeperServer

pytestmark = pytest.mark.server("zookeeper")

PROGRAM = """
import sys
library, url, nowhere, prefix = sys.argv[1:]
if library == "gevent":
    from gevent import monkey
    monkey.patch_all()
else:
    import eventlet
    eventlet.monkey_patch()
import threading, time
from celery_dlock.stores.zookeeper import client as zookeeper_client
from celery_dlock.stores.base import BackendOptions
from celery_dlock.stores.zookeeper.store import ZooKeeperBackend
from celery_dlock.core.state import Outcome, Run
from celery_dlock.errors import BackendUnavailable
from celery_dlock.testing.contract.words import claim

zookeeper_client.ANSWER_TIMEOUT = 1.0
options = BackendOptions(prefix=prefix, ttl=5.0)
backend = ZooKeeperBackend.from_url(url, options)
ticks = []

def tick():
    while True:
        ticks.append(time.monotonic())
        time.sleep(0.01)

def work(number):
    for turn in range(5):
        mine = claim(f"task {turn}", key=f"key {number}", ttl=2)
        assert isinstance(backend.enter(mine).verdict, Run)
        assert backend.renew([mine])
        backend.leave(mine, Outcome.DONE)

threading.Thread(target=tick, daemon=True).start()
workers = [threading.Thread(target=work, args=(n,)) for n in range(5)]
for worker in workers:
    worker.start()
for worker in workers:
    worker.join()
assert backend.certain(0)
assert backend.lease_of(1) == 2_500_000
handler = backend._rows._client.session().kazoo.handler.name
assert library in handler, handler
backend.close()

away, begun = ZooKeeperBackend.from_url(nowhere, options), len(ticks)
try:
    away.enter(claim("a"))
except BackendUnavailable:
    pass
else:
    raise AssertionError("it answered")
assert len(ticks) - begun > 20, "nothing else ran meanwhile"
away.close()
print("fine")
"""


@pytest.mark.parametrize("library", ["gevent", "eventlet"])
def test_it_uses_the_handler_of_the_library_that_has_patched_the_process(
    zookeeper_server: ZooKeeperServer, library: str
) -> None:
    (port,) = free_ports(1)
    prefix, nowhere = f"test-{uuid.uuid4().hex}", f"zookeeper://127.0.0.1:{port}"
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, library, zookeeper_server.url, nowhere, prefix],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "fine\n", done.stderr
