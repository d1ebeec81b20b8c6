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
    assert str(LockContended("a", "5f2d", 12.34)) == f"'a' is held by task 5f2d {ends}"
    block = LockContended("a", "lock()@vm/18836/2991c6f9e0aa4df1", 12.34)
    assert str(block) == f"'a' is held by lock() on vm:18836 {ends}"
    assert str(LockContended("a")) == "'a' is reserved for a task that waits for it"
    assert str(LockTimeout("a", "5f2d", 1.0, 5.0)).startswith("gave up after 5.0 s: 'a' is held")
    assert str(LockLost("a")) == "the lock on 'a' is lost: the lease has expired"
    assert str(StaleFencingToken("a", 7, 9)) == "'a' refused fencing token 7: it has seen 9"
