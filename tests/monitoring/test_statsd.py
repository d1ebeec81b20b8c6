"""What reaches an agent of DogStatsD, over a real socket; and what happens without one."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from celery_dlock.monitoring.statsd import StatsdSink
from tests.monitoring.happenings import HOLDER, KEY, TASK_ID, about, acquired, one_of_each, released
from tests.services.ports import free_ports
from tests.services.until import until
from tests.workers.conftest import MakeLab


class Agent:
    """A UDP socket, and the lines that came in."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 20)
        self.socket.bind(("127.0.0.1", 0))
        self.socket.setblocking(False)
        self.lines: list[str] = []

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def received(self) -> list[str]:
        """The lines so far."""
        try:
            while True:
                self.lines += self.socket.recv(65536).decode().splitlines()
        except BlockingIOError:
            return self.lines

    def count(self, name: str) -> int:
        return sum(line.startswith(f"{name}:") for line in self.received())


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Iterator[Agent]:
    agent = Agent()
    monkeypatch.setenv("DD_AGENT_HOST", "127.0.0.1")
    monkeypatch.setenv("DD_DOGSTATSD_PORT", str(agent.port))
    monkeypatch.setenv("DD_ENV", "staging")
    yield agent
    agent.socket.close()


@pytest.fixture
def sink() -> Iterator[StatsdSink]:
    sink = StatsdSink()
    yield sink
    sink.at_exit()


def test_measurements_arrive_with_their_tags(agent: Agent, sink: StatsdSink) -> None:
    sink(acquired(about(), took=0.004, ttl=30.0))
    sink(released(about(), held=1.5))

    until("three arrived", lambda: len(agent.received()) >= 3)
    tags = "|#task:charge,template:order:_order_id_,env:staging"  # as their names may be spelt
    assert sorted(line.split("|c:")[0] for line in agent.received()) == [
        f"dlock_acquisition_seconds:0.004|h{tags}",
        f"dlock_hold_seconds:1.5|h{tags}",
        f"dlock_ttl_seconds:30.0|g{tags}",
    ]


def test_no_tag_names_a_key_or_an_owner(agent: Agent, sink: StatsdSink) -> None:
    for event in one_of_each(about()):
        sink(event)

    until("the last arrived", lambda: agent.count("dlock_beat_missed"))
    text = "\n".join(agent.received())
    assert not [secret for secret in (KEY, TASK_ID, HOLDER, "datadog.") if secret in text]


def test_an_agent_away_is_no_error(sink: StatsdSink, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DD_AGENT_HOST", "127.0.0.1")
    monkeypatch.setenv("DD_DOGSTATSD_PORT", str(free_ports(1)[0]))

    for _ in range(5000):
        sink(acquired(about()))


def test_a_name_that_is_not_resolved_holds_up_nobody(
    sink: StatsdSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, answered = threading.Event(), threading.Event()

    def getaddrinfo(*_: object) -> list[object]:
        asked.set()
        answered.wait(60)
        raise socket.gaierror("unknown")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    monkeypatch.setenv("DD_AGENT_HOST", "nowhere.invalid")

    for _ in range(5000):
        sink(acquired(about()))

    assert asked.wait(60), "somebody is waiting for the name,"
    answered.set()  # and it was not who has just come here


def test_a_process_that_ends_sends_what_it_has(agent: Agent) -> None:
    code = (
        "from celery_dlock.monitoring import statsd\n"
        "from tests.monitoring.happenings import about, acquired\n"
        "statsd.EXIT_TIMEOUT = 60\n"
        "sink = statsd.StatsdSink()\n"
        "sink(acquired(about()))"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env=dict(os.environ))

    until("it arrived", lambda: agent.count("dlock_acquisition_seconds"))


@pytest.mark.slow
def test_a_worker_sends_from_all_its_children(agent: Agent, make_lab: MakeLab) -> None:
    tasks = 6
    lab = make_lab(celery={"dlock_sinks": ["statsd"], "worker_max_tasks_per_child": 1})
    with lab.worker(concurrency=2):
        for number in range(tasks):
            lab.app.tasks["apply"].delay(f"{number}")
        until("all arrived", lambda: agent.count("dlock_hold_seconds") >= tasks)

    assert agent.count("dlock_acquisition_seconds") == agent.count("dlock_hold_seconds") == tasks
