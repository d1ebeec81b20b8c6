"""What the commands say of a call that is debounced, and how a person has it run now."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock.core.debounce import DEBOUNCED
from celery_dlock.core.events import Debounced, Subject
from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim
from celery_dlock.runtime import runtime
from tests.cli.operator import Operator, answers, operator
from tests.services.until import until

KEY = f"{DEBOUNCED}save(doc:7)"
HOUR = 3600 * SECOND


def debounce(desk: Operator, task: str = "first") -> str:
    claim = Claim(KEY, f"{task}:0:0", nonce="", ttl=0)
    return str(desk.backend.postpone(claim, desk.message(task), HOUR, 2 * HOUR).verdict.task)


def test_it_is_told_for_how_long_and_until_when(desk: Operator) -> None:
    debounce(desk)

    _, row = desk.run("ls").stdout.splitlines()
    assert row.startswith(KEY)
    assert "nobody, for another 59 min 59 s: a call is debounced" in row
    told, of_key = desk.run("show", "first").stdout, desk.run("show", KEY).stdout

    assert f"for '{KEY}' where it is debounced until " in told
    assert "a call is debounced until " in of_key
    assert "unless a newer one takes its place" in of_key


def test_the_id_of_a_call_that_replaced_another_leads_to_that_one(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy")
    from celery_dlock.monitoring import batching

    config = {"dlock_history": f"sqlite:///{tmp_path / 'history.db'}"}
    with operator(dlock_url=f"sqlite:///{tmp_path / 'locks.db'}", **config) as desk:
        emit = runtime(desk.app).sinks.emit
        debounce(desk)
        for task in ("first", "second"):
            emit(Debounced(Subject(task, "save", "doc:{doc}"), KEY, "first"))

        def written() -> bool:
            batching.end()
            told = desk.run("show", "second").stdout
            return f"was debounced at '{KEY}': first has its message" in told

        until("it is in the history", written)
        assert "has waited since" in desk.run("show", "first").stdout


def test_a_person_ends_it(desk: Operator) -> None:
    debounce(desk)

    assert desk.run("cancel", "first", "--yes").exit_code == 0

    assert desk.woken() == [("first", "revoked")]


def test_a_person_has_it_run_now(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    debounce(desk)
    asked = answers(monkeypatch, True)

    assert desk.run("release", KEY, "--cooldown").exit_code == 0

    assert asked == [f"Open {KEY}, where a call is debounced for another 59 min 59 s?"]
    assert desk.woken() == [("first", None)]
