"""Forks pages, and the commands that they show, from a process that has imported Celery.

Here nobody has made an application, as with the fork server of workers: a page is to bring its own.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from tests.services.fork_server import become, begun, serve

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
    warns = ("-W", "error::DeprecationWarning:__main__")
    return begun(*warns, "-m", __name__, cwd=ROOT, stdin=subprocess.DEVNULL)


def commands_of_this_page() -> socket.socket:
    """Where a page asks for its commands, which are forked from what it is now."""
    here, there = socket.socketpair(type=socket.SOCK_SEQPACKET)
    if os.fork() == 0:
        here.close()
        request = serve(there, imported=())
        if request is None:
            os._exit(0)
        become(_with_its_path(request))
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
    with socket.socket(fileno=int(sys.argv[1])) as pages:
        page = serve(pages, IMPORTED)
    if page is not None:
        del sys.path[0]  # what -m has put there
        become(_with_its_path(page))
