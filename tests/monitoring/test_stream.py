"""The events of locks in Celery's own stream, as its receivers and cameras see them."""

from __future__ import annotations

import math
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from celery import Celery

from celery_dlock.monitoring.stream import EventStreamSink, type_of
from celery_dlock.runtime import forget
from tests.monitoring.happenings import about, acquired, one_of_each
from tests.services.brokers import over_redis
from tests.services.lab import Journal, Lab
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.services.worker import Worker

server = pytest.mark.server("redis")


@contextmanager
def receiving(app: Celery) -> Iterator[Any]:
    """Gives a function that returns the events of locks that were received so far."""
    events: list[dict[str, Any]] = []
    with app.connection_for_read() as connection:
        receiver = app.events.Receiver(connection, handlers={"*": events.append})
        with receiver.consumer_context() as (own, _, _):

            def received() -> list[dict[str, Any]]:
                try:
                    while True:
                        own.drain_events(timeout=0.05)
                except TimeoutError:
                    return [event for event in events if event["type"].startswith("dlock-")]

            def listens() -> bool:
                received()
                with app.events.default_dispatcher() as dispatcher:
                    dispatcher.send("test-ping")
                received()
                return bool(events)

            until("the receiver listens", listens)
            yield received


@pytest.fixture
def lab(tmp_path: Path, redis_server: RedisServer) -> Iterator[Lab]:
    """Its broker is Redis: the one in a folder has no exchange that all listen to."""
    (tmp_path / "results").mkdir()
    celery = {
        **over_redis(redis_server.port),
        "result_backend": f"file://{tmp_path / 'results'}",
        "dlock_url": f"sqlite:///{tmp_path / 'locks.db'}",
        "dlock_sinks": ["events"],
    }
    lab = Lab(tmp_path, {"celery": celery})
    yield lab
    forget(lab.app)
    lab.app.close()


def test_each_event_has_its_name() -> None:
    names = {type_of(event) for event in one_of_each(about())}
    assert {"dlock-acquired", "dlock-timed-out", "dlock-stale-rejected"} <= names
    assert len(names) == len(one_of_each(about()))


@server
@pytest.mark.slow
@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_receiver_sees_what_happens_in_a_worker(lab: Lab, pool: str) -> None:
    with receiving(lab.app) as received, lab.worker(pool, concurrency=2) as worker:
        first = lab.app.tasks["apply"].delay("1", hold="first")
        lab.journal.wait_for("start")
        second = lab.app.tasks["apply"].delay("1")

        def types(task: Any) -> list[str]:
            found = [event for event in received() if event["uuid"] == task.id]
            return [e["type"] for e in sorted(found, key=lambda event: event["timestamp"])]

        until("the second is refused", lambda: "dlock-rescheduled" in types(second))
        lab.go("first")
        until("the second has left", lambda: "dlock-released" in types(second))
        until("the first has left", lambda: "dlock-released" in types(first))

        assert types(first) == ["dlock-acquired", "dlock-released"]
        assert types(second)[:2] == ["dlock-contended", "dlock-rescheduled"]
        assert types(second)[-2:] == ["dlock-acquired", "dlock-released"]
        held = next(e for e in received() if e["type"] == "dlock-acquired")
        assert (held["hostname"], held["keys"]) == ("worker1@lab", ["order:1"])
        assert (held["task_name"], held["label"]) == ("apply", "order:{order}")
        assert (held["pid"] == worker.pid) == (pool == "gevent"), "or it happened in a child"


class Evcam(Worker):
    """``celery events`` with a camera."""

    is_up = b"Taking snapshots"

    def __init__(self, lab: Lab) -> None:
        super().__init__(lab.folder, lab.config, "camera", "", 0)
        app = "tests.services.lab:app"
        self._command = [
            *(sys.executable, "-m", "celery", "-A", app, "events"),
            *("--camera", "tests.monitoring.camera.Camera", "--frequency", "0.1"),
        ]


@server
@pytest.mark.slow
def test_a_camera_sees_them_beside_the_events_of_tasks(lab: Lab) -> None:
    seen = Journal(lab.folder / "seen")
    with Evcam(lab):

        def sees() -> bool:
            with lab.app.events.default_dispatcher() as dispatcher:
                dispatcher.send("test-ping")
            return bool(seen.read("test-ping"))

        until("the camera sees", sees)
        with lab.worker(worker_send_task_events=True):
            task = lab.app.tasks["apply"].delay("1")
            seen.wait_for("dlock-released", uuid=task.id)

    assert [entry["what"] for entry in seen.read(uuid=task.id) if "dlock" in entry["what"]] == [
        "dlock-acquired",
        "dlock-released",
    ]


@server
def test_a_process_that_ends_sends_what_it_has(redis_server: RedisServer) -> None:
    url = f"redis://127.0.0.1:{redis_server.port}/8"
    code = (
        "from celery import Celery\n"
        "from celery_dlock.monitoring.stream import EventStreamSink\n"
        "from tests.monitoring.happenings import about, acquired\n"
        "EventStreamSink.gather, EventStreamSink.exit_timeout = 300, 60\n"
        f"sink = EventStreamSink(Celery(broker={url!r}))\n"
        "sink(acquired(about()))"
    )
    with receiving(Celery("stream", broker=url, set_as_current=False)) as received:
        subprocess.run([sys.executable, "-c", code], check=True)
        until("it is received", received)


@server
def test_while_the_broker_is_away_the_newest_events_wait(
    own_redis_server: RedisServer, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(EventStreamSink, "room", 5)
    monkeypatch.setattr(EventStreamSink, "last_pause", 0.5)
    app = Celery("stream", broker=own_redis_server.url, set_as_current=False)
    sink = EventStreamSink(app)

    own_redis_server.kill()
    for took in range(20):
        sink(acquired(about(), took=float(took)))
    until("it is noticed", lambda: "the event stream cannot be written" in caplog.text)

    own_redis_server.start()
    with receiving(app) as received:
        sink(acquired(about(), took=20.0))
        until("the last is received", lambda: [e for e in received() if e["took"] == 20.0])

    until(
        "what was dropped is told",
        lambda: "events of locks are missing in the event stream" in caplog.text,
    )
    sink.at_exit()


def test_an_outage_after_another_is_waited_for_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    away: Iterator[bool] = iter([True] * 4 + [False] + [True] * 2)
    pauses: list[float] = []
    app = Celery("stream", broker="memory://", set_as_current=False)
    sink = EventStreamSink(app)
    sink._thread = threading.current_thread()  # so that none is started, and all is here

    class Dispatcher(app.events.Dispatcher):  # type: ignore[misc, name-defined]
        def flush(self, *args: Any, **options: Any) -> None:
            if next(away):
                raise OSError("away")
            super().flush(*args, **options)
            sink(acquired(about()))

    def wait(items: float, seconds: float) -> None:
        if items == math.inf:
            pauses.append(seconds)
        sink._ending = len(pauses) == 6

    monkeypatch.setattr(app.events, "Dispatcher", Dispatcher)
    monkeypatch.setattr(sink, "_wait", wait)
    sink(acquired(about()))

    sink._run()

    assert pauses == [0.5, 1.0, 2.0, 4.0, 0.5, 1.0]


def test_a_broker_that_does_not_answer_holds_up_nobody(caplog: pytest.LogCaptureFixture) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        sink = EventStreamSink(Celery("stream", broker=url, set_as_current=False))
        for _ in range(sink.room + 100):
            sink(acquired(about()))

    assert len(sink._queue) <= sink.room
