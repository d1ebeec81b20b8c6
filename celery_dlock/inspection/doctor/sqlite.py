"""The store in a file: where the file lies, and who may write it. It is not opened for writing."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from celery_dlock.backends.sqlite_file import APPLICATION_ID
from celery_dlock.inspection.doctor.case import Case
from celery_dlock.inspection.doctor.finding import Finding
from celery_dlock.inspection.doctor.mounts import NETWORK, VOLATILE, file_system
from celery_dlock.inspection.doctor.place import broker_url

#: Brokers with a server, and how this machine may be called in their URLs.
SERVED = frozenset({"amqp", "amqps", "pyamqp", "redis", "rediss", "sentinel"})
LOCAL = frozenset({"localhost", "127.0.0.1", "::1", gethostname()})

#: Of a folder anyone may write to: whether only owners may rename and delete what is in there.
_STICKY = stat.S_ISVTX
_ANYBODY = stat.S_IWOTH

#: The beginning of an SQLite file, as far as the mark of the program that it belongs to.
_HEADER = 72
_OURS = APPLICATION_ID.to_bytes(4, "big")


def examine_sqlite(case: Case) -> Iterator[Finding]:
    """``sqlite:///``. There is but one clock."""
    path = Path(case.settings.url.partition("://")[2].partition("/")[2])
    where = f"store {path}"
    if not path.is_absolute():
        yield Finding(
            "sqlite-relative",
            "weak",
            where,
            promise="A process that was started in another folder has a file, and locks, of its "
            "own: two tasks hold one key.",
            found=f"a path relative to the working directory, which is {Path.cwd()} here",
            mend=f"dlock_url = 'sqlite:///{path.absolute()}'",
        )
    yield from file_system_of(path.absolute(), where, file_system(path.absolute()))
    yield from _other_hosts(case.conf, where)
    yield from _permissions(path.absolute(), where)
    yield from _content(path.absolute(), where)


def file_system_of(path: Path, where: str, kind: str | None) -> Iterator[Finding]:
    """Whether a file can keep locks where it lies; *kind* is the type of the file system."""
    if kind is None:
        yield Finding(
            "sqlite-file-system",
            "unknown",
            where,
            promise="On a network share the locks of two machines do not see each other.",
            found="this system does not tell on which file system the file lies",
            mend=f"see with df -T {path.parent} that it is a local disk",
        )
    elif kind in NETWORK or kind.partition(".")[2] in NETWORK:
        yield Finding(
            "sqlite-network",
            "broken",
            where,
            promise="SQLite's file locks cannot be relied on there: two machines hold one key, and "
            "the file may be destroyed.",
            found=f"it lies on {kind}, a network file system",
            mend="a file on a local disk for one machine; for several, a store with a server, as "
            "in dlock_url = 'redis://…'",
        )
    elif kind in VOLATILE:
        yield Finding(
            "sqlite-volatile",
            "broken",
            where,
            promise="A restart of the machine forgets all: messages that wait are lost, and tokens "
            "begin anew below those that fenced tables have seen.",
            found=f"it lies on {kind}, which is memory",
            mend="a file on a disk, as in dlock_url = 'sqlite:////var/lib/shop/dlock.db'",
        )


def _other_hosts(conf: Any, where: str) -> Iterator[Finding]:
    url = urlsplit(broker_url(conf))
    host = url.hostname
    if url.scheme in SERVED and host and host not in LOCAL:
        yield Finding(
            "sqlite-hosts",
            "unknown",
            where,
            promise="A worker on another machine has locks of its own: two tasks hold one key.",
            found=f"the broker is at {host}, so there may be workers on other machines",
            mend="run all workers on this machine, or a store with a server, as in "
            "dlock_url = 'redis://…'",
        )


def _permissions(path: Path, where: str) -> Iterator[Finding]:
    folder = path.parent
    denied = [str(p) for p in (folder, path) if p.exists() and not _may(p, os.W_OK)]
    if denied:
        yield Finding(
            "sqlite-unusable",
            "broken",
            where,
            promise="No lock is taken by this user's processes.",
            found=f"user {os.geteuid()} may not write {', '.join(denied)}",
            mend=f"chown the folder {folder} and what is in it to the user that runs the workers",
        )
    opened = [p for p in _beside(path) if p.exists() and p.stat().st_mode & _ANYBODY]
    mode = folder.stat().st_mode
    if mode & _ANYBODY and not mode & _STICKY:
        opened.append(folder)
    if opened:
        names = " ".join(map(str, opened))
        yield Finding(
            "sqlite-world-writable",
            "weak",
            where,
            promise="Whoever has an account here frees locks, and puts messages in the queue that "
            "workers run.",
            found=f"anybody may write {names}",
            mend=f"chmod o-w {names}",
        )


def _content(path: Path, where: str) -> Iterator[Finding]:
    """Read off the file itself: to open it with SQLite may leave files beside it."""
    if not path.is_file() or not _may(path, os.R_OK):
        return
    with path.open("rb") as file:
        header = file.read(_HEADER)
    if header and not (header.startswith(b"SQLite format 3\0") and header.endswith(_OURS)):
        yield Finding(
            "sqlite-unusable",
            "broken",
            where,
            promise="No lock is taken: the store refuses this file.",
            found="it is another program's",
            mend="give the locks a file of their own in dlock_url",
        )


def _may(path: Path, what: int) -> bool:
    """Whether this process may, as who it is now."""
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _beside(path: Path) -> list[Path]:
    """The file, and those that SQLite puts beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
