"""What a store has said is checked by itself: each answer that cannot be so is found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from celery_dlock.core.operations import Enter, Leave, Renew
from celery_dlock.core.state import Claim, Left, Mode, Outcome, Renewed, Run
from celery_dlock.registry import open_backend
from celery_dlock.stores.base import BackendOptions, Reply, Wake
from tests.chaos.answers import untrue
from tests.chaos.trace import Spoken, Trace, spoken


def claim(task: str, **more: Any) -> Claim:
    return Claim("key", task, f"nonce of {task}", 1_500_000, **more)


def entered(task: str, token: int, at: float, slot: int = 0, **more: Any) -> Spoken:
    return Spoken(Enter(claim(task, **more), b"m"), at, at + 0.1, Reply(Run(slot, token)))


def left(task: str, at: float, outcome: Outcome = Outcome.DONE) -> Spoken:
    return Spoken(Leave(claim(task), outcome), at, at + 0.1, Reply(Left(carried=True)))


def renewed(task: str, at: float) -> Spoken:
    return Spoken(Renew(claim(task)), at, at + 0.1, Renewed(0))


WELL = [entered("a", 1, 0.0), renewed("a", 0.5), left("a", 1.0), entered("b", 2, 1.2), left("b", 2)]


@pytest.mark.parametrize(
    ("said", "what"),
    [
        (WELL, []),
        ([entered("a", 1, 0.0), entered("b", 2, 1.3)], ["have it at once"]),
        ([entered("a", 1, 0.0), entered("b", 2, 1.5)], []),  # its lease had ended
        ([entered("a", 1, 0.0), entered("b", 2, 0.5, slot=1)], []),
        ([entered("a", 1, 0.0), entered("b", 0, 0.5, mode=Mode.SHARED)], ["have it at once"]),
        ([entered("a", 0, 0.0, mode=Mode.SHARED), entered("b", 0, 0.5, mode=Mode.SHARED)], []),
        ([entered("a", 1, 0.0), renewed("a", 1.0), entered("b", 2, 1.8)], ["have it at once"]),
        ([entered("a", 2, 0.0), left("a", 1.0), entered("b", 1, 1.2)], ["was given after"]),
        ([*WELL, replace(entered("a", 3, 3.0))], ["is done, and was told to run"]),
        ([*WELL[:3], renewed("a", 1.2)], ["had left, and was renewed"]),
    ],
)
def test_what_cannot_be_so_is_found(said: Sequence[Spoken], what: Sequence[str]) -> None:
    found = list(untrue(said))
    assert len(found) == len(what)
    assert all(words in told for words, told in zip(what, found, strict=True))


def test_a_message_that_nobody_gave_is_found() -> None:
    wakes = (Wake("key", "b", b"m"), Wake("key", "c", b"another"))
    told = replace(WELL[2], answer=Reply(Left(carried=True), wakes))
    assert list(untrue([*WELL[:2], told])) == ["key: a message of c is woken that nobody gave"]


def test_who_was_killed_as_it_asked_to_leave_may_have_left() -> None:
    asked = replace(left("a", 0.3), answered=None, answer=None)
    assert list(untrue([entered("a", 1, 0.0), asked, entered("b", 2, 0.5)])) == []


def test_what_a_store_is_asked_is_written_down_once_with_its_answer(tmp_path: Path) -> None:
    store = open_backend(f"sqlite:///{tmp_path / 'locks.db'}", BackendOptions())
    Trace(tmp_path).follow(store)

    store.enter(claim("a"))
    store.apply_each([Enter(claim("b")), Enter(claim("c"))])
    store.renew([claim("a")])
    store.leave(claim("a"), Outcome.OVER)
    (tmp_path / "4711.trace").write_bytes(b"\x80\x05")  # of a process that was killed at it

    kinds = [type(each.operation) for each in spoken(tmp_path)]
    assert kinds == [Enter, Enter, Enter, Renew, Leave]
    verdicts = [getattr(each.answer, "verdict", each.answer) for each in spoken(tmp_path)]
    assert isinstance(verdicts[0], Run)
    assert isinstance(verdicts[3], Renewed)
    store.close()
