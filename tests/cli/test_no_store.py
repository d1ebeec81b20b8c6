"""The store is a file that is not there: that is said, and looking does not make it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from celery_dlock import lock
from tests.cli.operator import COMMANDS, Operator, operator
from tests.cli.test_completion import offered


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Operator]:
    """Somebody in a folder that the workers were not started in."""
    monkeypatch.chdir(tmp_path)
    with operator(dlock_url="sqlite:///dlock.db") as made:
        yield made


def test_a_command_names_a_missing_file_and_makes_none(elsewhere: Operator, tmp_path: Path) -> None:
    for command in (*COMMANDS, ["beat"]):
        result = elsewhere.run(*command)
        if command == ["metrics"]:
            assert "dlock_store_up 0.0\n" in result.output
        else:
            assert f"there is no lock store {tmp_path / 'dlock.db'}: " in result.output
            assert result.exit_code == 1
        if command[0] not in ("metrics", "show"):
            assert (result.output[:7], result.output.count("\n")) == ("Error: ", 1)
        assert list(tmp_path.iterdir()) == []


def test_neither_the_doctor_nor_a_shell_makes_it(elsewhere: Operator, tmp_path: Path) -> None:
    assert str(tmp_path) in elsewhere.run("doctor").output
    assert offered(elsewhere.app) == []

    assert list(tmp_path.iterdir()) == []


def test_who_takes_a_lock_makes_it(elsewhere: Operator, tmp_path: Path) -> None:
    with lock("order:42", app=elsewhere.app):
        (line,) = elsewhere.read("ls")["keys"]

    assert line["key"] == "order:42"
    assert (tmp_path / "dlock.db").exists()
