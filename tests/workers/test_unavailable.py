"""The store or the broker does not answer: no task fails for that, and no message is lost."""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kombu.exceptions import EncodeError
from kombu.serialization import register, unregister

from celery_dlock import BackendUnavailable, lock
from celery_dlock.core.state import Claim
from celery_dlock.delivery.publish import publish_again
from celery_dlock.runtime import runtime
from tests.services.desk import Desk, open_desk
from tests.services.ports import free_ports
from tests.services.unique import without_answer
from tests.workers.conftest import charging

NONSENSE = [b"HTTP/1.1 400 Bad Request\r\n\r\n", b"$-7\r\n", b"\x00\xff" * 64, b"+OK\r\n", b""]


@pytest.fixture
def nowhere() -> str:
    """The address of a server that nobody has started."""
    return f"redis://127.0.0.1:{free_ports(1)[0]}/0"


@contextmanager
def server_that_says(answer: bytes) -> Iterator[str]:
    """A server that answers whatever it is asked in the same way; the URL of a store."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    client, _ = server.accept()
                except OSError:
                    return
                with client:
                    client.recv(4096)
                    client.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"redis://127.0.0.1:{server.getsockname()[1]}/0"
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


def check_it_is_rescheduled(desk: Desk) -> None:
    charge = charging(desk, max_retries=0)
    result = charge.apply_async(("42",))
    first = desk.deliver()

    assert first.acknowledged
    assert result.state == "RETRY"
    assert isinstance(result.result, BackendUnavailable)
    again = desk.receive()
    assert again.headers["id"] == result.id
    assert again.headers["retries"] == 0
    assert again.headers["eta"] is not None
    assert again.headers["dlock"]["away"] == 1
    assert again.headers["dlock"]["waits"] == 0


def test_a_store_that_is_away_reschedules_the_task(nowhere: str) -> None:
    with open_desk(dlock_url=nowhere) as desk:
        check_it_is_rescheduled(desk)


def test_a_duplicate_of_a_task_that_has_failed_leaves_its_failure_as_the_store_is_away(
    nowhere: str,
) -> None:
    with open_desk(dlock_url=nowhere) as desk:
        charge = charging(desk)
        result = charge.apply_async(("42",))
        desk.app.backend.mark_as_failure(result.id, ValueError("no such order"))

        desk.deliver()

        assert (result.state, str(result.result)) == ("FAILURE", "no such order")
        assert desk.size() == 1


@pytest.mark.parametrize("results", ["rpc://", None])
def test_results_that_cannot_be_asked_for_are_not(
    nowhere: str, results: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    with open_desk(dlock_url=nowhere, result_backend=results) as desk:
        charge = charging(desk)
        charge.delay("42")
        desk.deliver()

        assert desk.size() == 1
    assert "could not be stored" not in caplog.text


@pytest.mark.parametrize("answer", NONSENSE)
def test_a_store_that_answers_nonsense_reschedules_the_task(answer: bytes) -> None:
    with server_that_says(answer) as url, open_desk(dlock_url=url) as desk:
        check_it_is_rescheduled(desk)


def test_a_folder_that_went_away_reschedules_and_back_again_it_runs(tmp_path: Path) -> None:
    folder = tmp_path / "locks"
    folder.mkdir()
    with open_desk(dlock_url=f"sqlite:///{folder / 'locks.db'}") as desk:
        charge = charging(desk)
        runtime(desk.app)
        folder.rmdir()
        folder.touch()
        result = charge.apply_async(("42",))
        desk.deliver()
        assert result.state == "RETRY"

        folder.unlink()
        folder.mkdir()
        desk.deliver()
        assert result.get() == "42"


def test_what_was_sent_away_is_no_duplicate_though_the_store_is_back_as_it_leaves(
    desk: Desk,
) -> None:
    charge = charging(desk)

    with desk.patch.context() as patch:
        patch.setattr(desk.store, "enter", without_answer())
        result = charge.apply_async(("42",))
        desk.deliver()
    assert result.state == "RETRY"

    desk.deliver()
    assert result.state == "SUCCESS"


def test_nothing_is_taken_back_after_the_message_was_published_again(desk: Desk) -> None:
    charge, store, happened = charging(desk), desk.store, list[str]()
    enter, leave, send = store.enter, store.leave, publish_again

    def entered(claim: Claim, message: bytes | None = None) -> None:
        enter(claim, message)
        happened.append("enter")
        raise BackendUnavailable("the answer was lost")

    def left(*given: Any) -> Any:
        happened.append("leave")
        return leave(*given)

    def published(*given: Any) -> None:
        happened.append("publish")
        send(*given)

    desk.patch.setattr(store, "enter", entered)
    desk.patch.setattr(store, "leave", left)
    desk.patch.setattr("celery_dlock.delivery.carry_out.publish_again", published)
    charge.delay("42")
    desk.deliver()

    # The copy, which may run elsewhere at once, meets nothing of this attempt any more
    assert happened == ["enter", "leave", "publish"]
    assert desk.holders("order:42") == []


def charge_on(desk: Desk, *, acks_late: bool, serializer: str | None = None) -> str:
    """Define a task, and send it one message; the message's task id."""

    charge = charging(desk, acks_late=acks_late)
    result = charge.apply_async(("42",), connection=desk.connection, serializer=serializer)
    return str(result.id)


@pytest.mark.parametrize(
    ("acks_late", "state", "messages"), [(True, "REJECTED", (1, 0)), (False, "ACK", (0, 1))]
)
def test_what_cannot_be_published_again_where_no_broker_takes_it_is_not_lost(
    nowhere: str, acks_late: bool, state: str, messages: tuple[int, int]
) -> None:
    with open_desk(broker_write_url=nowhere) as desk:
        task_id = charge_on(desk, acks_late=acks_late)
        with lock("order:42", app=desk.app, timeout=0):
            message = desk.deliver()

        assert (message._state, desk.result(task_id).state) == (state, "RETRY")
        assert (desk.size(), len(desk.store.peek("order:42").grants)) == messages


@pytest.fixture
def read_only() -> Iterator[Callable[[], None]]:
    """A serializer that stops writing when it is told to, and goes on reading."""
    broken = threading.Event()

    def write(value: object) -> str:
        if broken.is_set():
            raise EncodeError("this cannot be written any more")
        return json.dumps(value)

    register("read-only", write, json.loads, "application/x-read-only", "utf-8")
    yield broken.set
    unregister("read-only")


@pytest.mark.parametrize("acks_late", [True, False])
def test_what_cannot_be_written_again_goes_on_as_it_came(
    desk: Desk, read_only: Callable[[], None], acks_late: bool
) -> None:
    desk.app.conf.accept_content = ["json", "read-only"]
    task_id = charge_on(desk, acks_late=acks_late, serializer="read-only")
    read_only()

    with lock("order:42", app=desk.app, timeout=0):
        message = desk.deliver()

    assert message._state == "ACK"
    assert desk.size() == 1
    desk.deliver()
    assert desk.result(task_id).get() == "42"
