"""The commands as processes, with a terminal and without."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from celery_dlock.core.state import Outcome
from tests.cli.operator import Operator, operator
from tests.cli.terminal import PATIENCE, at_terminal, dlock, environment
from tests.inspection.patients import comes_to

SHOP = """\
from celery import Celery

app = Celery("shop", broker="amqp://127.0.0.1:1")
app.conf.dlock_url = {url!r}
app.conf.task_publish_retry = False
print("loaded")
"""


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Operator]:
    """Beside an application in the same folder, whose broker is away."""
    url = f"sqlite:///{tmp_path / 'locks.db'}"
    (tmp_path / "shop.py").write_text(SHOP.format(url=url))
    with operator(dlock_url=url) as made:
        made.backend.sweep()
        yield made


def test_what_is_piped_has_no_colours_and_is_not_cut(desk: Operator, tmp_path: Path) -> None:
    desk.hold("order:" + 200 * "4", "holder-" + 200 * "1", ttl=1)

    done = dlock(tmp_path, "ls", env={"COLUMNS": "20"})

    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    loaded, head, row = done.stdout.splitlines()
    assert (loaded, head.split()[:2]) == ("loaded", ["KEY", "TASK"])
    assert row.split()[:2] == ["order:" + 200 * "4", "holder-" + 200 * "1"]
    assert row == row.rstrip()


@pytest.mark.parametrize(
    ("command", "unbuffered"),
    [("ls", ""), ("ls", "1"), ("ls --json", ""), ("doctor", ""), ("metrics", "")],
    ids=["ls", "unbuffered", "json", "doctor", "metrics"],
)
def test_a_disk_that_is_full_is_said_in_a_line(
    desk: Operator, tmp_path: Path, command: str, unbuffered: str
) -> None:
    desk.hold("order:42")
    shop = tmp_path / "shop.py"
    shop.write_text(shop.read_text().replace('print("loaded")', ""))

    with Path("/dev/full").open("w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "celery", "-A", "shop", "dlock", *command.split()],
            cwd=tmp_path,
            env=environment(tmp_path, PYTHONUNBUFFERED=unbuffered),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=PATIENCE,
            check=False,
        )

    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert "No space left on device" in done.stderr


@pytest.mark.parametrize("quiet", [True, False], ids=["NO_COLOR", "in colour"])
def test_a_long_key_goes_on_in_the_next_line(desk: Operator, tmp_path: Path, quiet: bool) -> None:
    key = "order:" + "0123456789" * 12
    desk.hold(key, "holder", ttl=1)

    env = {"NO_COLOR": "1"} if quiet else {}
    with at_terminal(tmp_path, "ls", columns=130, **env) as terminal:
        assert terminal.end() == 0

    assert ("\x1b[31m" in terminal.said) is not quiet
    lines = re.sub(r"\x1b\[[\d;]*m", "", terminal.said).splitlines()
    assert all(len(line) <= 130 for line in lines)
    assert "".join(line.split(" ")[0] for line in lines[2:]) == key


def test_a_key_that_changes_hands_during_the_question(desk: Operator, tmp_path: Path) -> None:
    shown = desk.hold("order:42", "shown")
    with at_terminal(tmp_path, "release", "order:42") as terminal:
        terminal.wait_for("Take order:42 from task shown? [y/N]")
        desk.backend.leave(shown, Outcome.DONE)
        desk.hold("order:42", "other")
        terminal.type("y\n")
        assert terminal.end() == 1

    assert "Nothing was done: shown no longer holds order:42" in terminal.said
    assert desk.holders("order:42") == ["other"]


def test_a_broker_that_is_away_is_said_and_the_key_is_free(desk: Operator, tmp_path: Path) -> None:
    desk.app.conf.broker_url = "amqp://127.0.0.1:1"
    desk.hold("order:42", "stuck")
    desk.park("order:42", "next")

    done = dlock(tmp_path, "release", "order:42", "--yes")

    assert done.returncode == 0, done.stderr
    assert "order:42 is released; stuck" in done.stdout
    assert "next:0:0 could not be woken; it is woken again" in done.stderr
    assert done.stderr.count("\n") == 1
    assert desk.holders("order:42") == []


def test_top_at_a_terminal_shows_what_changes_until_ctrl_c(desk: Operator, tmp_path: Path) -> None:
    held = desk.hold("order:42", "first")
    with at_terminal(tmp_path, "ls", "--watch", "--every", "0.1", columns=120) as terminal:
        terminal.wait_for("first")
        desk.backend.leave(held, Outcome.DONE)
        desk.hold("order:43", "second")
        terminal.wait_for("second")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0

    assert "Traceback" not in terminal.said
    assert "Aborted" not in terminal.said
    # The cursor is back, and so is what was on the screen before.
    assert "\x1b[?25h" in terminal.said
    assert "\x1b[?1049l" in terminal.said


def test_metrics_are_served_until_ctrl_c(desk: Operator, tmp_path: Path) -> None:
    desk.hold("order:42")
    with at_terminal(tmp_path, "metrics", "--listen", "127.0.0.1:0") as terminal:
        terminal.wait_for("/metrics\r\n")
        found = re.search(r"ready: (http://127.0.0.1:\d+/metrics)", terminal.said)
        assert found is not None
        with urllib.request.urlopen(found[1], timeout=PATIENCE) as page:
            kind, text = page.headers["Content-Type"], page.read().decode()
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0

    assert kind.startswith("text/plain; version=")
    assert "dlock_held_keys 1.0\n" in text
    assert "Traceback" not in terminal.said


def test_an_address_that_is_taken_is_said_to_be(desk: Operator, tmp_path: Path) -> None:
    with at_terminal(tmp_path, "metrics", "--listen", "127.0.0.1:0") as terminal:
        terminal.wait_for("/metrics\r\n")
        port = terminal.said.rsplit(":", 1)[1].partition("/")[0]

        done = dlock(tmp_path, "metrics", "--listen", f"127.0.0.1:{port}")

    assert done.returncode == 1
    assert done.stderr.startswith(f"Error: cannot listen at 127.0.0.1:{port}: ")


def celery(folder: Path, *arguments: str, **env: str) -> subprocess.CompletedProcess[str]:
    """The command that is installed, with no more than *arguments*."""
    return subprocess.run(
        [str(Path(sys.executable).with_name("celery")), *arguments],
        cwd=folder,
        env=environment(folder, **env),
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )


def test_an_application_that_was_not_named_is_missed(tmp_path: Path) -> None:
    done = celery(tmp_path, "dlock", "ls")

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("Error: Celery app 'default': dlock_url is not set")
    assert done.stderr.endswith("; no application is named: celery -A shop dlock …\n")


def test_celery_loads_no_command_that_was_not_asked_for() -> None:
    """``celery --help``, and each worker that starts, imports this module."""
    code = (
        "import sys, celery_dlock.cli.main; "
        "print(sorted({'rich', 'redis', 'kazoo', 'grpc', 'sqlalchemy', 'prometheus_client', "
        "'starlette', 'celery_dlock.ops'} & set(sys.modules)))"
    )

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"


def offered(folder: Path, words: str) -> list[str]:
    """What bash offers behind *words*, of which the last one is being typed."""
    asks = {
        "_CELERY_COMPLETE": "bash_complete",
        "COMP_WORDS": f"celery {words}",
        "COMP_CWORD": str(len(words.split(" "))),
    }
    done = celery(folder, **asks)
    assert done.stderr == ""
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


def test_a_shell_offers_commands_keys_and_tasks(desk: Operator, tmp_path: Path) -> None:
    desk.dead_letter("order:1", "dead-one")
    desk.hold("order:42")
    desk.hold("other")
    desk.hold("order:\x1b[31m")
    desk.park("order:42", "waits-1", "waits-2")

    assert {"ls", "show", "release", "dead"} <= set(offered(tmp_path, "-A shop dlock "))
    for words, names in (
        ("show ord", ["order:42"]),
        ("cancel ", ["waits-1", "waits-2"]),
        ("dead ", ["dead-one"]),
    ):
        asked = partial(offered, tmp_path, f"-A shop dlock {words}")
        # A shell is answered soon or not at all, and here others are at work
        assert comes_to(names, asked) == names


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_is_given_a_script_that_asks_celery(tmp_path: Path, shell: str) -> None:
    done = celery(tmp_path, _CELERY_COMPLETE=f"{shell}_source")

    assert (done.returncode, done.stderr) == (0, "")
    assert f"_CELERY_COMPLETE={shell}_complete" in done.stdout


def test_a_shell_is_offered_nothing_while_the_store_is_away(tmp_path: Path) -> None:
    pytest.importorskip("redis")
    (tmp_path / "shop.py").write_text(SHOP.format(url="redis://127.0.0.1:1"))

    assert offered(tmp_path, "-A shop dlock show ") == []
    assert offered(tmp_path, "-A nonsense dlock show ") == []


def test_json_is_all_that_a_command_prints(desk: Operator, tmp_path: Path) -> None:
    desk.hold("order:42")

    done = dlock(tmp_path, "show", "order:42", "--json")

    assert json.loads(done.stdout.removeprefix("loaded\n"))["kind"] == "key"
    assert done.stderr == ""
