"""What of the library fails in the worker's main loop gives way to Celery."""

from __future__ import annotations

import logging

import pytest
from celery.exceptions import WorkerShutdown

from celery_dlock.worker.guard import Guard


def test_what_fails_is_logged_once_and_goes_no_further(caplog: pytest.LogCaptureFixture) -> None:
    guard = Guard("a child does it")
    with caplog.at_level(logging.WARNING, logger="celery_dlock"):
        for _ in range(3):
            with guard:
                raise KeyError("id")
    (record,) = caplog.records
    assert record.getMessage() == "a child does it: KeyError('id')"
    assert record.exc_info is not None


@pytest.mark.parametrize("error", [WorkerShutdown(0), KeyboardInterrupt(), MemoryError()])
def test_what_ends_a_worker_ends_it(error: BaseException) -> None:
    with pytest.raises(type(error)), Guard("nothing"):
        raise error


def test_celery_hears_of_a_lost_connection() -> None:
    with pytest.raises(ConnectionError), Guard("nothing", (OSError,)):
        raise ConnectionError
