"""A missing server is no silence: skipped with its package's name, failed where it has to be."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.services import programs
from tests.services.programs import PROGRAMS, Program
from tests.services.require import require

pytestmark = pytest.mark.once


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setitem(PROGRAMS, "quantum", Program("quantumd", "quantum-server"))
    return "quantum"


def test_at_home_the_test_is_skipped(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    with pytest.raises(pytest.skip.Exception, match="apt install quantum-server"):
        require(missing)


def test_where_it_has_to_run_it_fails(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    with pytest.raises(pytest.fail.Exception, match="apt install quantum-server"):
        require(missing)


def test_the_newest_of_several_versions_is_taken(tmp_path: Path) -> None:
    for version in ("9", "15", "13"):
        (tmp_path / version).mkdir()
        (tmp_path / version / "server").touch()

    assert Program(f"{tmp_path}/*/server", "server").found() == tmp_path / "15" / "server"


def test_what_is_missing_is_told_to_the_installer(tmp_path: Path) -> None:
    command = [sys.executable, programs.__file__]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()

    assert told == [p.package for p in PROGRAMS.values() if p.found() is None]
