"""Keys, task ids and arguments are anybody's text, and none of it reaches the terminal as it is."""

from __future__ import annotations

import json
import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from celery_dlock.cli.output import as_json
from celery_dlock.ops.plain_text import one_line, shown
from tests.cli.operator import Operator, answers

#: Colours, a title, a bell; a line of its own; markup of rich; turned around; nothing to be seen.
HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07order",
    "order\nfree\r",
    "[red]order[/red] [link=http://x]y[/link]",
    "order\u202e24\u2066",
    " \u200b\u00a0",
    "\x9b31morder\x7f",
    "it's a \\ 'key'\t",
)

#: What a terminal acts upon, or a reader cannot see.
ACTIVE = {"Cc", "Cf", "Zl", "Zp"}


def is_harmless(output: str) -> bool:
    return all(char == "\n" or unicodedata.category(char) not in ACTIVE for char in output)


@pytest.mark.parametrize("text", HOSTILE)
def test_no_command_prints_it(desk: Operator, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"id": "id", "task": text, "argsrepr": text}
    desk.dead_letter(text, f"{text}-dead", desk.message(f"{text}-dead", headers=headers))
    desk.hold(text, f"{text}-runs")
    desk.park(text, f"{text}-waits", f"{text}-too")
    asked = answers(monkeypatch, False)

    commands = [
        ["ls"],
        ["ls", "--json"],
        ["ls", "--watch"],
        ["show", text],
        ["show", text, "--json"],
        ["show", f"{text}-waits"],
        ["dead", "--args"],
        ["dead", "--args", "--json"],
        ["release", text],
        ["release", text, "--token", "99"],
        ["release", text, "--owner", text],
        ["cancel", f"{text}-waits"],
        ["cancel", f"{text}-not"],
        ["dead", f"{text}-dead", "--replay"],
        ["dead", f"{text}-not", "--replay"],
        ["dead", f"{text}-dead", "--discard"],
        ["dead", f"{text}-not", "--discard"],
        ["release", f"{text}-not"],
        ["release", text, "--yes"],
        ["cancel", f"{text}-too", "--yes"],
        ["dead", f"{text}-dead", "--replay", "--yes"],
        ["dead", f"{text}-dead", "--discard", "--yes"],
    ]
    said = {tuple(command): desk.run(*command).output for command in commands}

    for command, output in said.items():
        assert output, command
        assert is_harmless(output), (command, output)
    assert len(asked) == 4
    assert all(map(is_harmless, asked))
    assert json.loads(said["ls", "--json"])["keys"][0]["key"] == text
    assert shown(text) in said["ls",]


def test_a_row_is_a_line_whatever_is_in_it(desk: Operator) -> None:
    for text in HOSTILE:
        desk.hold(text, text)

    assert len(desk.run("ls").output.splitlines()) == 1 + len(HOSTILE)


@given(st.text())
def test_what_is_shown_and_said_is_always_printable(text: str) -> None:
    assert shown(text).isprintable()
    assert one_line(text).isprintable()
    assert shown(text).strip()


@given(st.text(), st.text())
def test_two_keys_never_look_the_same(one: str, other: str) -> None:
    assert (shown(one) == shown(other)) == (one == other)


@given(st.dictionaries(st.text(), st.text()))
def test_a_program_reads_what_was_written(value: dict[str, str]) -> None:
    assert json.loads(as_json(value)) == value
    assert is_harmless(as_json(value))


# What a shell cannot be given: NUL, and what is not to be written in UTF-8.
@settings(max_examples=25)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1))
def test_what_is_quoted_can_be_pasted_into_a_shell(text: str) -> None:
    if shown(text) == text:
        return
    said = subprocess.run(
        ["bash", "-c", f"printf %s {shown(text)}"],
        env={"LC_ALL": "C.UTF-8"},
        capture_output=True,
        check=True,
    ).stdout
    assert said.decode() == text


def test_a_key_that_can_do_no_harm_is_shown_as_it_is() -> None:
    for text in ("order:42", "größe:ü", "订单:42", r"C:\orders", "it's", "a b", "[red]"):
        assert shown(text) == text
