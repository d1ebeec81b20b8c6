"""The stores without a server: in the memory of one process, and in a file.

The file is not opened for writing: whether it lies where locks hold, and who may write it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from celery_dlock.ops.doctor.finding import Case, Finding, broker_url
from celery_dlock.stores.sql.sqlite_file import APPLICATION_ID

FIX = "dlock_url = 'sqlite:////var/lib/shop/dlock.db' on one machine, or a store with a server"

#: The pools that run tasks in the worker's own process.
ONE_PROCESS = frozenset({"solo", "threads", "gevent", "eventlet"})

MOUNTS = Path("/proc/self/mounts")

#: As the table writes them, with or without ``fuse.`` before them.
NETWORK = frozenset(
    {
        *("nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre"),
        *("gpfs", "beegfs", "gfs2", "ocfs2", "sshfs", "s3fs", "gcsfuse", "davfs", "moosefs"),
        *("juicefs", "cephfs", "blobfuse2", "rclone", "vboxsf", "prl_fs", "vmhgfs-fuse"),
    }
)
VOLATILE = frozenset({"tmpfs", "ramfs"})

#: Brokers with a server, and how this machine may be called in their URLs.
SERVED = frozenset({"amqp", "amqps", "pyamqp", "redis", "rediss", "sentinel"})
LOCAL = frozenset({"localhost", "127.0.0.1", "::1", gethostname()})

#: Of a folder anyone may write to: whether only owners may rename and delete what is in there.
_STICKY = stat.S_ISVTX
_ANYBODY = stat.S_IWOTH

#: The beginning of an SQLite file, as far as the mark of the program that it belongs to.
_HEADER = 72
_OURS = APPLICATION_ID.to_bytes(4, "big")


def examine_memory(case: Case) -> Iterator[Finding]:
    """``memory://``."""
    where = "store memory://"
    pool = str(case.conf.worker_pool)
    if pool not in ONE_PROCESS:
        yield Finding(
            "memory-prefork",
            "broken",
            where,
            promise="Each process has locks of its own, so a worker refuses to start.",
            found=f"worker_pool = {pool!r}",
            fix=FIX,
        )
    yield Finding(
        "memory-one-process",
        "weak",
        where,
        promise="Locks hold in one process only, and end with it. A second worker, a web process "
        "or beat has locks of its own, and parked messages are lost when the worker ends.",
        found="dlock_url = 'memory://'",
        fix=FIX,
    )


def file_system(path: Path, mounts: Path = MOUNTS) -> str | None:
    """The type of the file system of *path*, which need not be there yet; ``None`` if unknown."""
    try:
        table = mounts.read_text()
    except OSError:
        return None
    real = path.resolve()
    found, deepest = None, -1
    for line in table.splitlines():
        _, point, kind, *_ = line.split(" ")
        folder = Path(_unescaped(point))
        # The last one on a folder covers those before it.
        if real.is_relative_to(folder) and len(folder.parts) >= deepest:
            found, deepest = kind, len(folder.parts)
    return found


def _unescaped(point: str) -> str:
    """Spaces and the like are three octal digits there."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


def examine_sqlite(case: Case) -> Iterator[Finding]:
    """``sqlite:///``. There is but one clock."""
    path = Path(case.settings.url.partition("://")[2].partition("/")[2])
    where = f"store {path}"
    if not path.is_absolute():
        yield Finding(
            "sqlite-relative",
            "weak",
            where,
            promise="A process that is started in another folder has its own file and its own "
            "locks: two tasks hold one key.",
            found=f"a path relative to the working directory, which is {Path.cwd()} here",
            fix=f"dlock_url = 'sqlite:///{path.absolute()}'",
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
            found="this system does not show which file system the file is on",
            fix=f"check with df -T {path.parent} that it is a local disk",
        )
    elif kind in NETWORK or kind.partition(".")[2] in NETWORK:
        yield Finding(
            "sqlite-network",
            "broken",
            where,
            promise="SQLite's file locks are not reliable there: two machines hold one key, and "
            "the file may be destroyed.",
            found=f"it lies on {kind}, a network file system",
            fix="a file on a local disk for one machine; for several, a store with a server, as "
            "in dlock_url = 'redis://…'",
        )
    elif kind in VOLATILE:
        yield Finding(
            "sqlite-volatile",
            "broken",
            where,
            promise="A restart of the machine loses all: parked messages are lost, and tokens "
            "start again below those that fenced tables have seen.",
            found=f"it lies on {kind}, which is memory",
            fix="a file on a disk, as in dlock_url = 'sqlite:////var/lib/shop/dlock.db'",
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
            fix="run all workers on this machine, or a store with a server, as in "
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
            fix=f"chown the folder {folder} and what is in it to the user that runs the workers",
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
            promise="Any account on this machine can release locks, and add messages that workers "
            "run.",
            found=f"anyone may write {names}",
            fix=f"chmod o-w {names}",
        )
    read = [p for p in _beside(path) if p.exists() and p.stat().st_mode & stat.S_IROTH]
    if read and folder.stat().st_mode & stat.S_IXOTH:
        names = " ".join(map(str, read))
        yield Finding(
            "sqlite-world-readable",
            "weak",
            where,
            promise="Any account on this machine can read the arguments of waiting tasks.",
            found=f"anyone may read {names}",
            fix=f"chmod o-r {names}",
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
            fix="give the locks a file of their own in dlock_url",
        )


def _may(path: Path, what: int) -> bool:
    """Whether this process may, as who it is now."""
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


def _beside(path: Path) -> list[Path]:
    """The file, and those that SQLite puts beside it."""
    return [path, *(path.with_name(path.name + end) for end in ("-wal", "-shm"))]
