"""A message that was called and that the worker cannot decode lets the next one of its key run."""

# mypy: allow-untyped-calls

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import pytest
from kombu import compression, serialization
from kombu.utils.json import loads

from celery_dlock import lock
from celery_dlock.core import turns
from celery_dlock.core.state import Cause
from celery_dlock.runtime import runtime
from tests.services.lab import Lab
from tests.services.picky import CONTENT_TYPE
from tests.services.turns import freed
from tests.workers.conftest import MakeLab

SOON = 20.0

Spoilt = Callable[[], AbstractContextManager[dict[str, str]]]


@pytest.fixture
def lab(make_lab: MakeLab, monkeypatch: pytest.MonkeyPatch) -> Lab:
    """Calls are repeated after a fifth of a second and not after five."""
    monkeypatch.setattr(turns, "WAKE_AGAIN_FIRST", 200_000)
    return make_lab(
        {"accept_content": ["json", CONTENT_TYPE], "imports": ["tests.services.picky"]},
        lock={"policy": "queue as published"},
        call_again=200_000,
    )


@contextmanager
def spoilt_json() -> Iterator[dict[str, str]]:
    """What is no JSON, and says that it is."""
    serialization.register("spoilt", lambda _: "{", loads, "application/json", "utf-8")
    try:
        yield {"serializer": "spoilt"}
    finally:
        serialization.unregister("spoilt")
        serialization.register_json()


@contextmanager
def own_compression() -> Iterator[dict[str, str]]:
    """What only the publisher can pack, and nobody unpack."""
    compression.register(bytes, bytes, "application/x-own", ["own"])
    try:
        yield {"compression": "own"}
    finally:
        for kept in (compression._encoders, compression._decoders):
            del kept["application/x-own"]
        del compression._aliases["own"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoilt", "cause"),
    [(spoilt_json, Cause.UNREADABLE), (own_compression, Cause.UNPUBLISHABLE)],
    ids=["a spoilt body", "an unknown compression"],
)
def test_an_undecodable_message_is_dead_lettered(lab: Lab, spoilt: Spoilt, cause: Cause) -> None:
    apply = lab.app.tasks["apply"]
    with lab.worker() as worker, spoilt() as options:
        # Given two that wait, And the worker cannot decode the first
        with lock("order:42", app=lab.app, timeout=0):
            useless = apply.apply_async(("42", 1), **options)
            useful = apply.delay("42", 2)
        # When it is called, again and again, Then the next one runs
        assert useful.get(timeout=SOON) == 2
        assert "Can't decode message body" in worker.log
    # And it is dead, and has not run
    (letter,) = runtime(lab.app).backend.dead()
    assert (letter.dead.task, letter.dead.cause) == (f"{useless.id}:0:0", cause)
    assert lab.journal.read("start", number=1) == []


def test_what_only_a_child_cannot_decode_fails_and_the_next_one_runs_at_once(lab: Lab) -> None:
    apply = lab.app.tasks["apply"]
    with lab.worker():
        with lock("order:42", app=lab.app, timeout=0):
            useless = apply.apply_async(("42", 1), serializer="picky")
            useful = apply.delay("42", 2)
        with pytest.raises(Exception, match="a child cannot read this"):
            useless.get(timeout=SOON)
        assert useful.get(timeout=SOON) == 2
        freed(lab, "42")
    # And it was called once
    assert runtime(lab.app).backend.dead() == []
