"""Whatever is typed after a command, it ends with an exit code and in lines that do no harm."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from celery_dlock.cli.main import COMMANDS
from tests.cli.operator import Operator
from tests.cli.test_hostile import HOSTILE, is_harmless
from tests.services.hostile import examples

#: Those that serve, or watch, until they are told to end, are asked for no more than their start.
OPTIONS = {
    "web": ("--host", "--port", "--token-file", "--writable", "--no-such"),
    "metrics": ("--rules", "--dashboard", "--no-such"),
    "beat": ("--json", "--step-down", "--timeout", "--no-such"),
}
COMMON = (
    *("--json", "--yes", "--limit", "--match", "--all", "--token", "--owner", "--key", "--args"),
    *("--replay", "--discard", "--end", "--cooldown", "--watch"),
)

TEXTS = st.one_of(
    st.sampled_from(
        [*HOSTILE, "order:42", "x" * 5000, "\udc80", "a\0b", "-1", "--", "nan", "1e99"]
    ),
    st.text(max_size=12),
)


def is_said_well(desk: Operator, *arguments: str) -> None:
    done = desk.run(*arguments)
    assert done.exception is None or isinstance(done.exception, SystemExit), arguments
    assert is_harmless(done.output), (arguments, done.output)
    assert "Traceback" not in done.output


@pytest.mark.parametrize("command", sorted(COMMANDS))
@examples(25)
@given(data=st.data())
def test_any_arguments(
    desk: Operator, monkeypatch: pytest.MonkeyPatch, command: str, data: st.DataObject
) -> None:
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: None)
    words = st.one_of(TEXTS, st.sampled_from(OPTIONS.get(command, COMMON)))
    is_said_well(desk, command, *data.draw(st.lists(words, max_size=5)))


@pytest.mark.parametrize(
    "arguments",
    [
        ("web", "--host", "x" * 300),
        ("web", "--host", "a..b"),
        ("web", "--host", "\x1b[2J.invalid"),
        ("web", "--token-file", "a\0b"),
        ("ls", "--\x1b[2J"),
        ("ls", "\x1b[2J"),
        ("release", "\udc80"),
        ("show", "\udc80"),
        ("cancel", "\udc80"),
        ("dead", "\udc80", "--replay"),
        ("ls", "--match", "\udc80"),
    ],
)
def test_what_nothing_can_be_called(desk: Operator, arguments: tuple[str, ...]) -> None:
    is_said_well(desk, *arguments)


def test_a_beat_with_a_name_of_control_signs_is_named_harmlessly(desk: Operator) -> None:
    desk.hold("dlock:beat:shop", "host\x1b[2J")

    done = desk.run("beat", "--step-down")
    assert done.exit_code == 1
    assert "no beat stands by to take over from host\\x1b[2J" in done.output
    assert is_harmless(done.output)
