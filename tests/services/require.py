"""A test whose server is not installed is skipped at home, and fails where it has to run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.services.programs import PROGRAMS


def require(server: str) -> Path:
    """The program of *server*; without it the test is over."""
    program = PROGRAMS[server]
    if found := program.found():
        return found
    reason = f"{server} is not installed (Debian and Ubuntu: apt install {program.package})"
    if os.environ.get("CI") == "true":
        pytest.fail(reason)
    pytest.skip(reason)
