"""What a shell is offered is bounded, in time and in number."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import click
import pytest

from celery_dlock.cli import command
from tests.cli.operator import Operator


def offered(app: Any, typed: str = "") -> list[str]:
    root = click.Context(click.Command("celery"))
    root.params["app"] = app
    return command.keys(
        click.Context(click.Command("show"), parent=root), click.Argument(["what"]), typed
    )


def test_a_shell_does_not_wait_for_a_store_that_hangs(
    desk: Operator, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = threading.Event()

    def hangs(_: Any) -> Iterator[list[str]]:
        answers.wait()
        yield ["late"]

    monkeypatch.setattr(command, "names_in_use", hangs)
    monkeypatch.setattr(command, "COMPLETION_TIMEOUT", 0.01)

    try:
        assert offered(desk.app) == []
    finally:
        answers.set()


def test_of_many_keys_some_are_offered(desk: Operator, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(command, "OFFERED", 3)
    for number in range(5):
        desk.hold(f"order:{number}")

    assert len(offered(desk.app)) == 3
    assert offered(desk.app, "order:4") == ["order:4"]


def test_an_application_that_says_something_as_it_is_asked_is_not_heard(
    desk: Operator, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def talks(_: Any) -> Iterator[list[str]]:
        print("a word")  # noqa: T201
        yield ["order:42"]
        raise SystemExit("and out")

    monkeypatch.setattr(command, "names_in_use", talks)

    offered(desk.app)
    assert capsys.readouterr() == ("", "")
