"""Forks pages, and the commands that they show, from a process that has imported Celery.

Here nobody has made an application, as with the fork server of workers: a page is to bring its own.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from tests.services.fork_server import become, keep

ROOT = Path(__file__).resolve().parents[2]

#: What most of them come to import.
IMPORTED = (
    "celery.apps.beat",
    "celery.apps.worker",
    "celery.bin.celery",
    "celery.concurrency.prefork",
    "celery.concurrency.thread",
    "celery.worker.autoscale",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery_dlock.cli.main",
    "celery_dlock.ops",
    "celery_dlock.stores.memory",
    "celery_dlock.stores.sql.sqlite_file",
    "celery_dlock.worker.request",
    "kombu.transport.filesystem",
    "kombu.transport.memory",
    "rich.console",
    "sybil.evaluators.python",
    "sybil.parsers.markdown",
    "sybil.parsers.rest",
)


@cache
def server() -> socket.socket:
    """Where this process asks for pages, until it ends."""
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    warns = ("-W", "error::DeprecationWarning:__main__")
    with there:
        process = subprocess.Popen(
            [sys.executable, *warns, "-m", __name__, str(there.fileno())],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            pass_fds=[there.fileno()],
            start_new_session=True,
        )

    def close() -> None:
        here.close()
        process.wait()

    atexit.register(close)
    return here


def serve(asked: socket.socket) -> Mapping[str, Any] | None:
    """Fork for each request; returns it in the child, and nothing when no more will come."""
    gc.collect()
    gc.freeze()  # or each child copies what its garbage collector looks at
    keepers: set[int] = set()
    while True:
        data, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 2)
        keepers -= {keeper for keeper in keepers if os.waitpid(keeper, os.WNOHANG)[0]}
        if not data:
            return None
        keeper = os.fork()
        if keeper == 0:
            asked.close()
            with socket.socket(fileno=descriptors[0]) as teller:
                if keep(teller, descriptors[1]):
                    return _with_its_path(json.loads(data))
            os._exit(0)
        keepers.add(keeper)
        for descriptor in descriptors:
            os.close(descriptor)


def commands_of_this_page() -> socket.socket:
    """Where a page asks for its commands, which are forked from what it is now."""
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        request = serve(there)
        if request is None:
            os._exit(0)
        become(request)
        sys.exit()
    there.close()
    return here


def _with_its_path(request: Mapping[str, Any]) -> Mapping[str, Any]:
    """*request*, with ``PYTHONPATH`` as it says and not as it was here."""
    for folder in filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep)):
        sys.path.remove(folder)
    sys.path[:0] = request["env"]["PYTHONPATH"].split(os.pathsep)
    return request


if __name__ == "__main__":
    for name in IMPORTED:
        import_module(name)
    del sys.path[0]  # what -m has put there
    with socket.socket(fileno=int(sys.argv[1])) as pages:
        page = serve(pages)
    if page is not None:
        become(page)
