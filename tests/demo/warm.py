"""``python -m tests.demo.warm MODULE``: a command of the example, forked, as is all that it starts.

Each of its workers would import Celery anew, which is most of what a demo costs. What ``DEFECT``
in the environment says is executed first, and is true for the command and for all below it.
"""

from __future__ import annotations

import os
import runpy
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any

from tests.services import fork_server


def forking(server: socket.socket) -> Callable[..., fork_server.Forked]:
    """As much of :class:`subprocess.Popen` as the example needs."""

    def start(
        command: Sequence[str],
        env: Mapping[str, str],
        stdout: IO[bytes] | None = None,
        **_: object,
    ) -> fork_server.Forked:
        if command[2] != "celery":  # a command of the example's own, which starts workers
            command = [*command[:2], "tests.demo.warm", *command[2:]]
        return fork_server.ask(server, command, stdout.fileno() if stdout else 1, env)

    return start


def main() -> None:
    module, *sys.argv[1:] = sys.argv[1:]
    exec(os.environ.pop("DEFECT", ""), {})
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        with there:
            request = fork_server.serve(there)
        if request is not None:
            fork_server.become(request)
        return
    there.close()
    popen: Any = forking(here)
    subprocess.Popen = popen  # type: ignore[misc]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
