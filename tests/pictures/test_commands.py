"""The commands at a terminal, over the locks of a busy shop: the pictures of the documentation."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.cli.terminal import at_terminal
from tests.pictures.drawing import shows_terminal
from tests.pictures.scene import PAY, busy_shop
from tests.web.conftest import called_at_once

__all__ = ["called_at_once"]

pytestmark = [pytest.mark.once, pytest.mark.slow]

COLUMNS = 118

APP = """
from celery import Celery

app = Celery("shop", broker="memory://")
app.conf.dlock_url = "sqlite:///locks.db"
app.conf.dlock_history = "sqlite:///history.db"
"""


@pytest.fixture
def folder(tmp_path: Path, called_at_once: None) -> Path:
    (tmp_path / "shop.py").write_text(APP)
    busy_shop(tmp_path)
    return tmp_path


def test_ls_watch(folder: Path) -> None:
    with at_terminal(folder, "ls", "--watch", columns=COLUMNS) as terminal:
        terminal.wait_for("keys")
        terminal.process.send_signal(signal.SIGINT)
        assert terminal.end() == 0
    last = terminal.said.rpartition("\x1b[H")[2].partition("\x1b[?1049l")[0]
    shows_terminal("watch.svg", "celery -A shop dlock ls --watch", last, COLUMNS)


def test_show(folder: Path) -> None:
    with at_terminal(folder, "show", PAY, columns=COLUMNS) as terminal:
        assert terminal.end() == 0
    shows_terminal("show.svg", f"celery -A shop dlock show {PAY}", terminal.said, COLUMNS)
