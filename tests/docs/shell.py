"""Runs ``console`` blocks: what stands behind ``$`` is run, what follows is what it must print.

``celery …`` and ``python -m …`` are forked from a process that has imported Celery; with a pipe or
a redirection they go to bash and start as anybody starts them, as does all else.

A command that ends with ``&`` goes on in the background until the page is through; it counts as
started when it has printed "ready", that it leads, or where it serves. Three dots in the expected
text stand for anything.
"""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from tests.docs.rehearsal import rehearsed
from tests.docs.warm import commands_of_this_page
from tests.services.fork_server import Forked, ask

PATIENCE = 60.0

#: Workers, beats, and the servers of Flask, FastAPI and Django.
STARTED = re.compile(r"ready|leads, with token|[Rr]unning on http|development server at http")

#: What bash is needed for.
SHELL = set("|&;<>()$`\\*?[]#~=\n")


class Shell:
    """Commands of one page, in the folder *cwd*."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PYTHONPATH": str(cwd), "PYTHONUNBUFFERED": "1"}
        self._warm = commands_of_this_page()
        self._background: list[Forked | subprocess.Popen[bytes]] = []

    def run(self, block: str) -> None:
        for command, expected in commands(block):
            if command.endswith("&"):
                self._start(command.rstrip("& "))
            else:
                self._run(rehearsed(command) or command, expected)

    def _run(self, command: str, expected: str) -> None:
        with tempfile.TemporaryFile() as output:
            process = self._begin(command, output)
            try:
                code: int | str = process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                code = f"none, after {PATIENCE:g} s"
            finally:
                process.kill()
            output.seek(0)
            printed = output.read().decode()
        assert code == 0, f"$ {command}\n{printed}\nexit code: {code}"
        if expected:
            pattern = re.escape(expected).replace(re.escape("..."), ".*?")
            assert re.fullmatch(pattern, printed.strip(), re.DOTALL), (
                f"$ {command}\nprinted\n{printed}\nand not\n{expected}"
            )

    def _start(self, command: str) -> None:
        output = self.cwd / f"background-{len(self._background)}.log"
        with output.open("wb") as log:
            process = self._begin(command, log)
        self._background.append(process)
        deadline = time.monotonic() + PATIENCE
        while not STARTED.search(output.read_text()):
            over = process.poll() is not None or time.monotonic() > deadline
            assert not over, f"$ {command} &\n{output.read_text()}"
            time.sleep(0.05)

    def _begin(self, command: str, output: IO[bytes]) -> Forked | subprocess.Popen[bytes]:
        words = python_module(command)
        if words is not None:
            return ask(self._warm, [sys.executable, "-m", *words], output.fileno(), self.env)
        return subprocess.Popen(
            ["bash", "-ec", command],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._warm.close()
        for process in self._background:
            process.terminate()
        for process in self._background:
            try:
                process.wait(PATIENCE)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def python_module(command: str) -> list[str] | None:
    """The module that *command* runs, and its arguments, if it is as simple as that."""
    if SHELL & {*command}:
        return None
    match shlex.split(command):
        case ["celery", *arguments]:
            return ["celery", *arguments]
        case ["python", "-m", *words]:
            return words
    return None


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of *block* with the output that is shown after it."""
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = piece.partition("\n")
        yield command.strip(), expected.strip()
