"""Commands that a page shows and that cannot be run from within a test: checked, not run.

``make`` must know the target, pytest must find the tests, and pip's extras must be those of this
package or Celery's. A file of requirements must be what is installed.
"""

from __future__ import annotations

import re
import shlex
import sys
from importlib.metadata import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def rehearsed(command: str) -> str | None:
    """The command that checks *command*, or ``None`` if that can be run as it is."""
    program, *arguments = shlex.split(command)
    if program == "make":
        return shlex.join(["make", "-n", "-C", str(ROOT), *arguments])
    if command.startswith("python -m pytest "):
        collect = [sys.executable, *arguments, "--collect-only", "-q"]
        return f"cd {shlex.quote(str(ROOT))} && {shlex.join(collect)}"
    if command.startswith("pip install -r "):
        installed = [sys.executable, "-m", "pip", "install", "--no-index", "--no-deps"]
        return shlex.join([*installed, *arguments[1:]])
    if command.startswith("pip install "):
        return shlex.join(["test", "-z", " ".join(_unknown(arguments[1:]))])
    return None


def _unknown(requirements: list[str]) -> list[str]:
    """Which are neither this package nor Celery, or ask for an extra that it has not."""
    wrong = []
    for requirement in requirements:
        found = re.fullmatch(r"(celery|celery-dlock)(?:\[([\w,]+)\])?", requirement)
        if not found or not set((found[2] or "").split(",")) - {""} <= _extras(found[1]):
            wrong.append(requirement)
    return wrong


def _extras(package: str) -> set[str]:
    return set(metadata(package).get_all("Provides-Extra") or ())
