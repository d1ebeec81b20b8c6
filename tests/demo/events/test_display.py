from __future__ import annotations

import io

from rich.console import Console

from example_project.events.audit import Finding
from example_project.events.display import Display


def shown(*, terminal: bool) -> str:
    text = io.StringIO()
    with Display(
        Console(file=text, force_terminal=terminal, soft_wrap=True, highlight=False)
    ) as display:
        for applied in range(0, 121, 10):
            display.show(applied, 500, repeated=3)
        display.say("killed [worker1]")
        display.verdict(
            [Finding("Good", "5 of 5", ()), Finding("Bad", "4 of 5", ("7-001 [twice]",))]
        )
    return text.getvalue()


def test_where_there_is_no_terminal_it_prints_plain_lines() -> None:
    output = shown(terminal=False)
    assert "\x1b" not in output
    assert [line.split("s  ")[1] for line in output.splitlines() if "events applied" in line] == [
        f"{applied} of 500 events applied, 3 published again" for applied in (0, 50, 100)
    ]
    assert "killed [worker1]" in output


def test_on_a_terminal_there_is_a_bar() -> None:
    output = shown(terminal=True)
    assert "━" in output
    assert "120/500" in output
    assert "of 500 events applied" not in output


def test_the_verdict_says_what_does_not_hold_and_why() -> None:
    lines = shown(terminal=False).splitlines()
    assert "  yes  Good: 5 of 5" in lines
    assert lines[lines.index("  NO   Bad: 4 of 5") + 1].strip() == "7-001 [twice]"
