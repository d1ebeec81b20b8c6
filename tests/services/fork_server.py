"""Celery's commands as processes that need not import Celery: forked from one that has.

To import it is most of what a worker, a beat or a command costs, and this machine's processor is
what the tests wait for. Each process of pytest has a fork server of its own. It has one thread, and
what it imports opens nothing and starts nothing.

Between it and each process stands a keeper, which tells what became of that process and leaves its
number taken until we have heard, as between parent and child.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import IO, Any

#: What most of them come to import.
IMPORTED = (
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.backends.database",
    "celery.backends.redis",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery_dlock.worker.request",
    "celery_dlock.stores.redis",
    "celery_dlock.stores.sql",
    "kombu.transport.redis",
    "tests.services.lab",
    "tests.services.seen",
    "tests.services.tasks",
    "example_project.broker",
)

#: These pools change Python itself before anything is imported.
GREEN = {"eventlet", "gevent"}


class Forked:
    """As much of :class:`subprocess.Popen` as is needed of a process that was forked for us."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        self._told = keeper.makefile("rb")
        self.returncode: int | None = None
        self.pid = int(self._told.readline())

    def poll(self) -> int | None:
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """The exit code; a negative one is the number of the signal that ended it."""
        if self.returncode is None:
            if not select.select([self._keeper], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
            self.returncode = int(self._told.readline())
            self._told.close()
            self._keeper.close()
        return self.returncode

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

    def terminate(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGTERM)


def start(
    command: Sequence[str], output: IO[bytes], env: Mapping[str, str]
) -> Forked | subprocess.Popen[bytes]:
    """Run ``python -m …`` in a session of its own, with the working directory of this process."""
    assert command[:2] == [sys.executable, "-m"], command
    # What is imported or loaded already would be this version, whatever is said here.
    says = ("PYTHONPATH", "LD_PRELOAD")
    other_code = any(env.get(name) != os.environ.get(name) for name in says)
    forked = {"worker", "beat"} & {*command} and not GREEN & {*command}
    if other_code or not forked:
        return subprocess.Popen(
            command, stdout=output, stderr=output, env=env, start_new_session=True
        )
    return fork(command, output, env)


def fork(
    command: Sequence[str],
    output: IO[bytes],
    env: Mapping[str, str],
    errors: IO[bytes] | None = None,
) -> Forked:
    """As :func:`start`, whatever the module is."""
    apart = None if errors is None else errors.fileno()
    return ask(_server(os.getpid()), command, output.fileno(), env, apart)


def ask(
    server: socket.socket,
    command: Sequence[str],
    output: int,
    env: Mapping[str, str],
    errors: int | None = None,
) -> Forked:
    """Have the process at the other end of *server* fork one for us."""
    here, there = socket.socketpair()
    with there:
        request = json.dumps({"argv": command[2:], "env": {**env}, "cwd": str(Path.cwd())})
        outputs = (output, output if errors is None else errors)
        socket.send_fds(server, [request.encode()], [there.fileno(), *outputs])
    return Forked(here)


@cache
def _server(pid: int) -> socket.socket:
    """Where the fork server of this process is asked, which *pid* is."""
    return begun("-m", __name__, stdin=subprocess.DEVNULL)


def begun(*module: str, **surroundings: Any) -> socket.socket:
    """Where the fork server is asked that Python runs as *module*, until this process ends."""
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    with there:
        server = subprocess.Popen(
            [sys.executable, *module, str(there.fileno())],
            pass_fds=[there.fileno()],
            start_new_session=True,
            **surroundings,
        )

    def close() -> None:
        here.close()
        server.wait()

    atexit.register(close)
    return here


def serve(asked: socket.socket, imported: Sequence[str] = IMPORTED) -> dict[str, Any] | None:
    """Fork for each request; returns it in the child, and nothing when no more will come."""
    for name in imported:
        import_module(name)
    gc.collect()
    gc.freeze()  # or each child copies what its garbage collector looks at
    keepers: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 3)
        keepers -= {keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG)[0]}
        if not data:
            return None
        keeper = os.fork()
        if keeper == 0:
            asked.close()
            with socket.socket(fileno=descriptors[0]) as teller:
                if keep(teller, *descriptors[1:]):
                    return dict(json.loads(data))
            os._exit(0)
        keepers.add(keeper)
        for descriptor in descriptors:
            os.close(descriptor)


def keep(teller: socket.socket, output: int, errors: int) -> bool:
    """In the child, true. In its keeper, false when it is gone and *teller* knows how it ended."""
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.dup2(output, 1)
        os.dup2(errors, 2)
        os.close(output)
        os.close(errors)
        with contextlib.suppress(OSError):  # nobody may want to know
            teller.sendall(b"%d\n" % os.getpid())  # who hears it may signal the group
        return True
    os.close(output)
    os.close(errors)
    ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert ended is not None
    code = ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status
    with contextlib.suppress(OSError):
        teller.sendall(b"%d\n" % code)
        teller.recv(1)
    os.waitpid(pid, 0)
    return False


def become(request: Mapping[str, Any]) -> None:
    """Run what was asked for, as ``python -m`` would have."""
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    folders = filter(None, request["env"].get("PYTHONPATH", "").split(os.pathsep))
    sys.path[:0] = [folder for folder in folders if folder not in sys.path]
    for name in ("stdout", "stderr"):
        getattr(sys, name).reconfigure(write_through=True)
    module, *sys.argv[1:] = request["argv"]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        child = serve(asked)
    if child is not None:
        become(child)
