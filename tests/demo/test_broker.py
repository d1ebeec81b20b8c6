"""The shop's broker: nothing is seen before it is whole, nothing is taken twice or lost."""

# mypy: allow-untyped-calls

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from queue import Empty
from typing import Any

import pytest
from kombu.connection import Connection

from example_project.broker import Channel, Transport, transport_options

MESSAGES = 600


@pytest.fixture
def options(tmp_path: Path) -> dict[str, Any]:
    return transport_options(tmp_path)


@pytest.fixture
def channel(options: dict[str, Any]) -> Iterator[Channel]:
    with Connection("filesystem://localhost", transport=Transport, transport_options=options) as c:
        yield c.channel()


def left(options: dict[str, Any]) -> list[str]:
    folders = ("data_folder_in", "processed_folder", "writing_folder")
    return [path.name for folder in folders for path in Path(options[folder]).iterdir()]


def test_messages_come_out_whole_and_in_their_order(
    channel: Channel, options: dict[str, Any]
) -> None:
    for number in range(20):
        channel._put("celery", {"number": number})
    assert [channel._get("celery")["number"] for _ in range(20)] == list(range(20))
    with pytest.raises(Empty):
        channel._get("celery")
    assert left(options) == []


def test_queues_are_kept_apart(channel: Channel) -> None:
    channel._put("mail", {"number": 1})
    with pytest.raises(Empty):
        channel._get("celery")
    assert channel._get("mail") == {"number": 1}


def test_a_message_is_not_seen_while_it_is_written(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Given a write that takes its time: the file is open, and nothing is in it yet
    looked: list[Any] = []
    write_bytes = Path.write_bytes

    def slowly(path: Path, content: bytes) -> int:
        path.touch()
        try:
            looked.append(channel._get("celery"))
        except Empty:
            looked.append(None)
        return write_bytes(path, content)

    monkeypatch.setattr(Path, "write_bytes", slowly)
    # When somebody looks in the middle of it
    channel._put("celery", {"number": 1})
    # Then there is nothing to see until it is whole
    assert looked == [None]
    assert channel._get("celery") == {"number": 1}


def test_who_is_late_for_a_message_takes_the_next(
    channel: Channel, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(2):
        channel._put("celery", {"number": number})
    rename = Path.rename

    def too_late(path: Path, target: Path) -> Path:
        monkeypatch.undo()
        path.unlink()  # somebody else was here
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", too_late)
    assert channel._get("celery") == {"number": 1}


def test_bindings_of_many_at_once_are_all_kept(channel: Channel, options: dict[str, Any]) -> None:
    start = threading.Barrier(16)

    def bind(number: int) -> None:
        start.wait()
        channel._queue_bind("orders", "key", "", f"queue{number}")
        channel._queue_bind("orders", "key", "", f"queue{number}")

    threads = [threading.Thread(target=bind, args=(number,)) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    queues = [row.queue for row in channel.get_table("orders")]
    assert sorted(queues) == sorted(f"queue{number}" for number in range(16))


def test_a_worker_is_never_kept_from_acknowledging_for_long(channel: Channel) -> None:
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        channel.connection.drain_events(channel.connection, timeout=5)
    assert time.monotonic() - began < 2
