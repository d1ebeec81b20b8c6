"""Errors travel: by pickle between processes, and as JSON through a result backend."""

from __future__ import annotations

import pickle
from uuid import uuid4

import pytest
from celery import Celery

from celery_dlock import errors
from celery_dlock.errors import (
    BackendUnavailable,
    ConfigurationError,
    DLockError,
    LockContended,
    LockLost,
    LockTimeout,
    StaleFencingToken,
)

EXAMPLES = [
    DLockError("something"),
    ConfigurationError("dlock_url is not set"),
    BackendUnavailable("the store did not answer"),
    LockContended("order:42", "5f2d", 12.5),
    LockContended("order:42"),
    LockContended("order:42", None, 12.5, "ann: the provider books twice"),
    LockTimeout("order:42", "5f2d", 12.5, 3600.0),
    LockTimeout("order:42", None, 12.5, 3600.0, "ann: the provider books twice"),
    LockTimeout("order:42", waited=5.0),
    LockContended("order:42", "5f2d", 12.5, by="shop.charge[5f2d] on celery@one:4711"),
    LockTimeout("order:42", "5f2d", 12.5, 9.0, by="shop.charge[5f2d]", limit="max_wait=9 of Queue"),
    LockLost("order:42", "it was not renewed in time"),
    LockLost("order:42"),
    StaleFencingToken("order:42", 7, 9),
    StaleFencingToken("order:42", 7),
]


def is_same(one: BaseException, other: BaseException) -> bool:
    """Same class, text, arguments and attributes."""
    mine, theirs = ((type(e), str(e), e.args, vars(e)) for e in (one, other))
    return mine == theirs


def test_every_error_has_an_example() -> None:
    every = {
        kind
        for kind in vars(errors).values()
        if isinstance(kind, type) and issubclass(kind, DLockError)
    }

    assert {type(example) for example in EXAMPLES} == every


@pytest.mark.parametrize("error", EXAMPLES, ids=repr)
def test_an_error_survives_pickling(error: DLockError) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert is_same(pickle.loads(pickle.dumps(error, protocol)), error), protocol


@pytest.mark.parametrize("serializer", ["json", "pickle"])
def test_an_error_survives_a_result_backend(serializer: str) -> None:
    app = Celery("shop", backend="cache+memory://", set_as_current=False)
    app.conf.update(result_serializer=serializer, accept_content=["json", "pickle"])
    for error in EXAMPLES:
        task_id = uuid4().hex
        app.backend.store_result(task_id, error, "FAILURE")
        assert is_same(app.AsyncResult(task_id).result, error), error


@pytest.mark.parametrize("kind", [LockContended, TimeoutError])
def test_a_timeout_is_caught_as_contention_and_as_any_timeout(kind: type[Exception]) -> None:
    with pytest.raises(kind):
        raise LockTimeout("order:42", "5f2d", 1.0, 5.0)


def test_a_timeout_is_not_taken_for_a_lost_connection() -> None:
    """Nor has it a number of an error of the system, which Celery's consumer looks at."""
    error: OSError = LockTimeout("order:42", "5f2d", 1.0, 5.0)

    assert not isinstance(error, ConnectionError)
    assert (error.errno, error.strerror, error.filename) == (None, None, None)


def test_messages_say_who_holds_the_key_and_for_how_long() -> None:
    ends = "(its lease ends in 12.3 s unless it is renewed)"
    assert LockContended("a", "5f2d", 12.34).why == f"'a' is held by task 5f2d {ends}"
    named = LockContended("a", "5f2d", 12.34, by="shop.charge[5f2d] on celery@one:4711")
    assert named.why == f"'a' is held by shop.charge[5f2d] on celery@one:4711 {ends}"
    block = LockContended("a", "lock()@vm/18836/2991c6f9e0aa4df1", 12.34)
    assert block.why == f"'a' is held by lock() on vm:18836 {ends}"
    assert LockContended("a").why == "'a' is reserved for a task that waits for it"
    assert str(LockLost("a")) == "the lock on 'a' is lost: the lease has expired"


def test_contention_names_the_command_that_says_more() -> None:
    assert str(named := LockContended("a", "5f2d")) == f"{named.why}; see `dlock show a`"
    assert str(LockContended("a(1)")).endswith("; see `dlock show 'a(1)'`"), "for a shell"


def test_a_timeout_names_its_limit_and_who_has_the_key() -> None:
    limit = "max_wait=3600 of Reschedule"
    held = LockTimeout("a", "5f2d", 1.0, 3600.2, by="shop.charge[5f2d]", limit=limit)
    assert str(held) == (
        f"gave up after 3600.2 s ({limit}; a larger one waits longer): 'a' is held by "
        "shop.charge[5f2d] (its lease ends in 1.0 s unless it is renewed); see `dlock show a`"
    )
    queued = LockTimeout("a", waited=5.0)
    assert queued.why == "gave up after 5.0 s: its turn at 'a' did not come"


@pytest.mark.parametrize(
    ("seen", "why"),
    [
        (9, "'a' has seen token 9 since this run got token 7"),
        (None, "'a' has seen a newer token since this run got token 7"),
        (7, "'a' has seen another owner of that token since this run got token 7"),
        (
            0,
            "its lock on 'a', with token 7, is over, or its transaction has a snapshot",
        ),
    ],
)
def test_a_late_write_says_what_was_newer_and_what_becomes_of_it(
    seen: int | None, why: str
) -> None:
    text = str(StaleFencingToken("a", 7, seen))

    assert text.startswith(f"late write refused: {why}")
    assert text.endswith(
        "Let this error end the run: its transaction is rolled back, and a task runs again"
    )
