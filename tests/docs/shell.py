"""Runs ``console`` blocks: what stands behind ``$`` is run, what follows is what it must print.

A command that ends with ``&`` goes on in the background until the page is through; it counts as
started when it has printed "ready", or that it leads. Three dots in the expected text stand for
anything.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.rehearsal import rehearsed

PATIENCE = 60.0


class Shell:
    """Commands of one page, in the folder *cwd*."""

    def __init__(self, cwd: Path) -> None:
        self.cwd = cwd
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PYTHONPATH": str(cwd), "PYTHONUNBUFFERED": "1"}
        self._background: list[subprocess.Popen[bytes]] = []

    def run(self, block: str) -> None:
        for command, expected in commands(block):
            if command.endswith("&"):
                self._start(command.rstrip("& "))
            else:
                self._run(rehearsed(command) or command, expected)

    def _run(self, command: str, expected: str) -> None:
        done = subprocess.run(
            ["bash", "-ec", command],
            cwd=self.cwd,
            env=self.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"$ {command}\n{done.stdout}"
        if expected:
            pattern = re.escape(expected).replace(re.escape("..."), ".*?")
            assert re.fullmatch(pattern, done.stdout.strip(), re.DOTALL), (
                f"$ {command}\nprinted\n{done.stdout}\nand not\n{expected}"
            )

    def _start(self, command: str) -> None:
        output = self.cwd / f"background-{len(self._background)}.log"
        with output.open("wb") as log:
            process = subprocess.Popen(
                ["bash", "-c", f"exec {command}"],
                cwd=self.cwd,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._background.append(process)
        deadline = time.monotonic() + PATIENCE
        while not re.search("ready|leads, with token", output.read_text()):
            over = process.poll() is not None or time.monotonic() > deadline
            assert not over, f"$ {command} &\n{output.read_text()}"
            time.sleep(0.05)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._background:
            process.terminate()
        for process in self._background:
            try:
                process.wait(PATIENCE)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()


def commands(block: str) -> Iterator[tuple[str, str]]:
    """Each command of *block* with the output that is shown after it."""
    for piece in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, expected = piece.partition("\n")
        yield command.strip(), expected.strip()
