"""A task for which a key is kept, as the next step of a chain, is named wherever somebody looks."""

from __future__ import annotations

from dataclasses import replace

import pytest

from celery_dlock.core.lease import SECOND
from celery_dlock.core.state import Claim, Outcome, WaitMode
from tests.cli.operator import Operator

KEY = "import:acme"
SENTENCE = "next: load, of the chain of fetch-1"


@pytest.fixture
def chained(desk: Operator) -> Operator:
    """Task ``load-1`` comes next, of a chain, before ``another`` that waits."""
    held = desk.hold(KEY)
    desk.park(KEY, "another")
    step = {"id": "load-1", "after": "fetch-1", "next": [KEY]}
    message = desk.message("load-1", headers={"id": "load-1", "task": "load", "dlock_step": step})
    head = Claim(KEY, "load-1:0:0", "", ttl=60 * SECOND, wait=WaitMode.HEAD, ordered=True)
    desk.backend.enter(head, message)
    desk.backend.leave(held, Outcome.DONE)
    return desk


@pytest.mark.parametrize("command", ["ls", f"show {KEY}"])
def test_the_commands_name_it_once(chained: Operator, command: str) -> None:
    assert chained.run(*command.split()).output.count(SENTENCE) == 1


def test_programs_are_told_the_chain(chained: Operator) -> None:
    (line,) = chained.read("ls")["keys"]
    first, second = chained.read("show", KEY)["queue"]

    assert [each["of_chain"] for each in (line, first, second)] == ["fetch-1", "fetch-1", None]


def test_a_key_that_is_kept_for_a_retry_is_free_when_that_is_cancelled(desk: Operator) -> None:
    held = replace(desk.hold(KEY, "load-1:0:0"), successor="load-1:1:0", patience=3_600 * SECOND)
    desk.park(KEY, "another")
    desk.backend.leave(held, Outcome.DONE)

    result = desk.run("cancel", "load-1", "--yes")

    assert result.exit_code == 0
    assert result.output == f"{KEY} is released; load-1 ends as revoked when its message comes\n"
    assert desk.woken() == [("another", None)]
    assert desk.run("cancel", "load-1", "--yes").exit_code == 1
