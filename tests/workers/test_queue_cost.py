"""What ten thousand waiting tasks cost while nothing happens: at the store, and in the worker."""

from __future__ import annotations

import json
import uuid
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

import psutil
import pytest

from celery_dlock import lock
from celery_dlock.core.state import Park
from celery_dlock.locks.probe import NOBODYS
from celery_dlock.messages.envelope import ParkedMessage
from celery_dlock.runtime import forget, runtime
from celery_dlock.stores.redis.scripts import HEADS, RENEW, SWEEP, TIME
from celery_dlock.stores.redis.store import RedisBackend
from celery_dlock.stores.redis.wire import base_name, names
from celery_dlock.testing.contract.words import QUEUE, claim
from tests.services.lab import Lab
from tests.services.redis import RedisServer
from tests.services.require import require
from tests.services.until import until
from tests.services.worker import Worker

pytestmark = [pytest.mark.server("redis"), pytest.mark.slow]

KEY = "order:42"
QUEUE_NAME, ENTRIES_NAME = names(base_name("dlock", KEY))[1:3]
#: The first hundreds make a process touch what it shared with its parent till then.
FEW, SOME, MANY = 600, 2_000, 10_000
#: Seconds; renewed every third of it.
TTL = 3.0


@dataclass(frozen=True)
class Crowd:
    """An order that is taken, *MANY* that wait for it; what the worker's memory grew by."""

    backend: RedisBackend
    store: RedisServer
    message: bytes
    grown: int


@pytest.fixture(scope="module")
def crowd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Crowd]:
    """The first of them have come through the one worker; a second one has nothing to do."""
    require("redis")
    with RedisServer() as broker, RedisServer() as store:
        config = {
            "celery": {
                "broker_url": broker.url,
                "result_backend": broker.url,
                "dlock_url": store.url,
            },
            "lock": {"policy": "queue", "ttl": TTL},
            "task": {"acks_late": True},
        }
        lab = Lab(tmp_path_factory.mktemp("crowd"), config)
        backend = runtime(lab.app).backend
        assert isinstance(backend, RedisBackend)
        with lock(KEY, app=lab.app, ttl=TTL), lab.worker("prefork", concurrency=2) as worker:
            publish(lab, store, FEW)
            before = memory(worker)
            publish(lab, store, SOME)
            message = waiting_message(store)
            for number in range(SOME, MANY):
                other = claim(f"{uuid.uuid4()}:0:0", key=KEY, wait=QUEUE)
                assert backend.enter(other, message).verdict == Park(), number
            with lab.worker("prefork", concurrency=1):
                yield Crowd(backend, store, message, memory(worker) - before)
        forget(lab.app)
        lab.app.close()


def publish(lab: Lab, store: RedisServer, count: int) -> None:
    """Return when *count* messages wait."""
    with store.client() as client:
        for number in range(client.zcard(QUEUE_NAME), count):
            lab.app.tasks["apply"].delay("42", number, hold="x" * 1000)
        until(f"{count} wait", lambda: client.zcard(QUEUE_NAME) == count, timeout=120)


def memory(worker: Worker) -> int:
    """Bytes that the processes of *worker* have to themselves."""
    main = psutil.Process(worker.pid)
    return sum(process.memory_full_info().uss for process in (main, *main.children()))


def waiting_message(store: RedisServer) -> bytes:
    with store.client() as client:
        _, packed = client.hrandfield(ENTRIES_NAME, 1, withvalues=True)
    return bytes(packed[packed.index(b'{"schema"') :])  # numbers in front of it may hold a brace


def test_only_renewals_and_sweeps_reach_the_store_while_ten_thousand_wait(crowd: Crowd) -> None:
    known = {"renew": RENEW, "sweep": SWEEP, "heads": HEADS, "time": TIME}
    scripts = {script.digest.decode(): name for name, script in known.items()}

    def name_of(command: str) -> str:
        if NOBODYS in command:
            return "check"
        verb, first = command.split()[:2]
        return scripts.get(first, command) if verb == "EVALSHA" else verb

    heard = Counter(map(name_of, commands(crowd.store, seconds=10)))

    # Every half a minute each of two workers sees, with two commands, whether the store takes
    # writes, and looks through a page of the keys in use.
    assert heard.pop("check", 0) <= 2 * 2
    for part in ("SCAN", "heads", "time"):
        assert heard.pop(part, 0) <= 2, part
    # One process holds a lease; the workers look around every five seconds, and when it would end.
    assert set(heard) == {"renew", "sweep"}
    assert heard["renew"] <= 10 / (TTL / 3) + 1
    assert heard["sweep"] <= 2 * (10 / (TTL * 2 / 3) + 1)


def commands(server: RedisServer, seconds: float) -> list[str]:
    """What clients ask of *server* from the first command on, by the server's own clock."""
    heard: list[str] = []
    began = None
    with server.client() as client, client.monitor() as monitor:
        for said in monitor.listen():
            began = began or said["time"]
            if said["time"] > began + seconds:
                break
            if said["client_type"] != "lua":  # what a script calls costs no round trip
                heard.append(said["command"])
    return heard


def test_a_worker_keeps_nothing_of_what_waits(crowd: Crowd) -> None:
    assert crowd.grown < 0.1 * MANY * len(crowd.message)


def test_the_store_takes_one_and_a_half_times_the_message_of_a_waiting_task(crowd: Crowd) -> None:
    entry = ParkedMessage.decode(KEY, "a:0:0", crowd.message)
    published = len(entry.body) + len(json.dumps([entry.headers, entry.properties]))
    with crowd.store.client() as client:
        used = sum(int(client.memory_usage(name, samples=0)) for name in (QUEUE_NAME, ENTRIES_NAME))

    assert used / MANY <= 1.5 * published
