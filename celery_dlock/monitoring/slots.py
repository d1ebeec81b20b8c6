"""The files in which the processes of one host count, each in its own, as ``prometheus_client`` has
them; but a file that a process has left is taken on by the next one.

By default each process starts a file named by its pid, and the sum must keep the files of all that
have ended: a worker that replaces its children (``max_tasks_per_child``) would leave thousands, and
each scrape would read them all. Here a process takes the first number that nobody has, by a lock on
a file that the kernel frees with the process, however that ends, and counts on in its files.
"""

from __future__ import annotations

import fcntl
import logging
import os
from functools import cache
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from prometheus_client import Counter

from celery_dlock.errors import ConfigurationError

logger = logging.getLogger("celery_dlock")

#: What is used here of the library and not promised by it: it has no other way to tell single
#: metrics where they are to count.
INSIDES = ("ValueClass", "MultiProcessValue", "MutexValue")

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


def folder() -> Path | None:
    """Where the processes of this host count, if they do so together.

    Raises :exc:`~celery_dlock.ConfigurationError` for one that cannot be written to.
    """
    name = os.environ.get(VARIABLE)
    if not name:
        return None
    if not os.access(name, os.W_OK | os.X_OK) or not Path(name).is_dir():
        raise ConfigurationError(
            f"{VARIABLE} must name a folder that this process may write to: create it, "
            "empty, before the first worker of the host starts"
        )
    return Path(name)


class Slot:
    """The number of this process among those that count in the folder."""

    def __init__(self) -> None:
        self._held = -1
        self._name = ""
        os.register_at_fork(after_in_child=self._leave)

    def __call__(self) -> str:
        """Part of the names of its files, which has no underscore. Asked at each step."""
        return self._name or self._take()

    def _leave(self) -> None:
        """The parent keeps it."""
        if self._held >= 0:
            os.close(self._held)
        self._held, self._name = -1, ""

    def _take(self) -> str:
        where = folder()
        assert where is not None
        for number in count():
            held = os.open(where / f"dlock-{number}.lock", os.O_RDWR | os.O_CREAT, 0o666)
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(held)
            else:
                self._held, self._name = held, f"dlock-{number}"
                return self._name
        raise AssertionError  # there is always one more


def check() -> None:
    """Warn where each process is going to start files of its own."""
    if folder() is not None and _values() is None:
        logger.warning(
            "this prometheus_client is built otherwise than celery_dlock knows it: counts are "
            "right, but each process that starts adds files to %s",
            VARIABLE,
        )


@cache
def _values() -> Any:
    """The module with the library's class of values; ``None`` if that is not there any more.

    Then the library counts as it does by default: right, in ever more files.
    """
    try:
        found = import_module("prometheus_client.values")
    except ImportError:
        return None
    known = hasattr(Counter, "_metric_init") and all(hasattr(found, name) for name in INSIDES)
    return found if known else None


@cache
def _value_in_slot() -> Any:
    return _values().MultiProcessValue(Slot())


class InSlot:
    """Put before one of the library's metrics, it has its values in the slot's files.

    The class of values is the library's one global, which a metric reads as it is made. Which one
    it is, of one process or of several, was decided when the library was imported.
    """

    def _metric_init(self) -> None:
        library = _values()
        if library is None or library.ValueClass is library.MutexValue:
            super()._metric_init()  # type: ignore[misc]
            return
        usual = library.ValueClass
        library.ValueClass = _value_in_slot()
        try:
            super()._metric_init()  # type: ignore[misc]
        finally:
            library.ValueClass = usual
