"""Faults at exact places: a worker kills or stops itself just before or after a chosen call.

Installed into the process that runs the lab's app, around functions of the product and of Celery;
neither knows of it. Each fault strikes once in the life of a lab: a marker file says that it has.
"""

from __future__ import annotations

import functools
import importlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celery_dlock.locks.probe import NOBODYS


def kill(when: str, where: str) -> dict[str, Any]:
    """SIGKILL to the worker's whole group, *when* is ``before`` or ``after`` the call *where*."""
    return {"when": when, "where": where, "signal": int(signal.SIGKILL)}


def limit(when: str, where: str) -> dict[str, Any]:
    """The signal of a soft time limit, to the process that makes the call."""
    return {"when": when, "where": where, "signal": int(signal.SIGUSR1)}


def struck(folder: Path) -> bool:
    """Whether the first fault of the lab in *folder* has struck."""
    return _marker(folder, 0).exists()


def install(folder: Path, faults: Sequence[Mapping[str, Any]]) -> None:
    """Wrap what *faults* name, as ``package.module:Class.method`` or ``package.module:name``."""
    for number, fault in enumerate(faults):
        module, _, path = fault["where"].partition(":")
        *parents, name = path.split(".")
        owner = functools.reduce(getattr, parents, importlib.import_module(module))
        wrapped = _wrap(getattr(owner, name), fault, _marker(folder, number))
        setattr(owner, name, wrapped)


def _wrap(call: Any, fault: Mapping[str, Any], marker: Path) -> Any:
    @functools.wraps(call)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        # The main process asks, too, whether the store takes writes: that is no step of a task.
        strikes = all(getattr(value, "key", None) != NOBODYS for value in args)
        if strikes and fault["when"] == "before":
            _strike(fault["signal"], marker)
        answer = call(*args, **kwargs)
        if strikes and fault["when"] == "after":
            _strike(fault["signal"], marker)
        return answer

    return wrapper


def _strike(number: int, marker: Path) -> None:
    try:
        os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    if number == signal.SIGUSR1:
        os.kill(os.getpid(), number)
    else:
        os.killpg(os.getpgid(0), number)


def _marker(folder: Path, number: int) -> Path:
    return folder / f"struck-{number}"
