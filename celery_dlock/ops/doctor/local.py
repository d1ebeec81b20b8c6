"""The stores without a server: in the memory of one process, and in a file.

The file is not opened for writing: whether it lies where locks hold, and who may write it.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from socket import gethostname
from typing import Any
from urllib.parse import urlsplit

from celery_dlock.ops.doctor.finding import (
    Broken,
    Case,
    Checks,
    Finding,
    Unknown,
    Weak,
    broker_url,
    judged,
)
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

_ANYBODY = stat.S_IWOTH

#: The beginning of an SQLite file, as far as the mark of the program that it belongs to.
_HEADER = 72
_OURS = APPLICATION_ID.to_bytes(4, "big")


#: Of Celery's configuration.
MEMORY: Checks[Any] = {
    "memory-prefork": Broken(
        lambda conf: (pool := str(conf.worker_pool)) not in ONE_PROCESS and pool,
        "worker_pool = {!r}",
        promise="Each process has locks of its own, so a worker refuses to start.",
        fix=FIX,
    ),
    "memory-one-process": Weak(
        lambda _: True,
        "dlock_url = 'memory://'",
        promise="Locks hold in one process only, and end with it. A second worker, a web process "
        "or beat has locks of its own, and parked messages are lost when the worker ends.",
        fix=FIX,
    ),
}


def examine_memory(case: Case) -> Iterator[Finding]:
    """``memory://``."""
    return judged(MEMORY, case.conf, "store memory://")


def _unescaped(point: str) -> str:
    """Spaces and the like are three octal digits there."""
    return re.sub(r"\\([0-7]{3})", lambda octal: chr(int(octal[1], 8)), point)


@dataclass(frozen=True, slots=True)
class File:
    """A file that is to keep locks, and where the broker of its tasks is."""

    given: Path
    broker: str = ""
    mounts: Path = MOUNTS

    @property
    def path(self) -> Path:
        return self.given.absolute()

    @property
    def folder(self) -> Path:
        return self.path.parent

    @property
    def kind(self) -> str | None:
        """The type of the file system it is on, or would be; ``None`` if unknown."""
        try:
            mounts = [line.split(" ") for line in self.mounts.read_text().splitlines()]
        except OSError:
            return None
        real = self.path.resolve()
        folders = [(Path(_unescaped(point)), kind) for _, point, kind, *_ in mounts]
        over = [(len(f.parts), kind) for f, kind in folders if real.is_relative_to(f)]
        # The last one on a folder covers those before it.
        return max(reversed(over), key=itemgetter(0), default=(0, None))[1]

    @property
    def broker_host(self) -> str:
        """Another host, at which the broker has a server."""
        url = urlsplit(self.broker)
        host = url.hostname or ""
        return host if url.scheme in SERVED and host not in LOCAL else ""

    @property
    def files(self) -> list[Path]:
        """The file, and those that SQLite puts beside it, as far as they are there."""
        files = [self.path, *(Path(f"{self.path}{end}") for end in ("-wal", "-shm"))]
        return [file for file in files if file.exists()]

    @property
    def denied(self) -> str:
        """What this process may not write."""
        paths = [path for path in (self.folder, self.path) if path.exists()]
        return ", ".join(str(path) for path in paths if not _may(path, os.W_OK))

    @property
    def writable(self) -> str:
        """What anybody may write."""
        opened = [file for file in self.files if file.stat().st_mode & _ANYBODY]
        mode = self.folder.stat().st_mode
        # In a sticky folder only owners may rename and delete.
        folder = [self.folder] if mode & _ANYBODY and not mode & stat.S_ISVTX else []
        return " ".join(map(str, [*opened, *folder]))

    @property
    def readable(self) -> str:
        """What anybody may read."""
        entered = self.folder.stat().st_mode & stat.S_IXOTH
        files = self.files if entered else []
        return " ".join(str(file) for file in files if file.stat().st_mode & stat.S_IROTH)

    @property
    def foreign(self) -> bool:
        """Whether it is another program's: read off itself, as to open it may leave files there."""
        if not self.path.is_file() or not _may(self.path, os.R_OK):
            return False
        with self.path.open("rb") as file:
            header = file.read(_HEADER)
        ours = header.startswith(b"SQLite format 3\0") and header.endswith(_OURS)
        return bool(header) and not ours


def _may(path: Path, what: int) -> bool:
    """Whether this process may, as who it is now."""
    return os.access(path, what, effective_ids=os.access in os.supports_effective_ids)


SQLITE: Checks[File] = {
    "sqlite-relative": Weak(
        lambda file: not file.given.is_absolute() and (Path.cwd(), file.path),
        "a path relative to the working directory, which is {0[0]} here",
        promise="A process that is started in another folder has its own file and its own locks: "
        "two tasks hold one key.",
        fix="dlock_url = 'sqlite:///{0[1]}'",
    ),
    "sqlite-file-system": Unknown(
        lambda file: file.kind is None and file,
        "this system does not show which file system the file is on",
        promise="On a network share the locks of two machines do not see each other.",
        fix="check with df -T {0.folder} that it is a local disk",
    ),
    "sqlite-network": Broken(
        lambda file: (
            file.kind and (NETWORK & {file.kind, file.kind.partition(".")[2]}) and file.kind
        ),
        "it lies on {}, a network file system",
        promise="SQLite's file locks are not reliable there: two machines hold one key, and the "
        "file may be destroyed.",
        fix="a file on a local disk for one machine; for several, a store with a server",
    ),
    "sqlite-volatile": Broken(
        lambda file: file.kind in VOLATILE and file.kind,
        "it lies on {}, which is memory",
        promise="A restart of the machine loses all: parked messages are lost, and tokens start "
        "again below those that fenced tables have seen.",
        fix="a file on a disk, as in dlock_url = 'sqlite:////var/lib/shop/dlock.db'",
    ),
    "sqlite-hosts": Unknown(
        lambda file: file.broker_host,
        "the broker is at {}, so there may be workers on other machines",
        promise="A worker on another machine has locks of its own: two tasks hold one key.",
        fix="run all workers on this machine, or a store with a server",
    ),
    "sqlite-unusable": (
        Broken(
            lambda file: file.denied and (os.geteuid(), file.denied, file.folder),
            "user {0[0]} may not write {0[1]}",
            promise="No lock is taken by this user's processes.",
            fix="chown the folder {0[2]} and what is in it to the user that runs the workers",
        ),
        Broken(
            lambda file: file.foreign,
            "it is another program's",
            promise="No lock is taken: the store refuses this file.",
            fix="give the locks a file of their own in dlock_url",
        ),
    ),
    "sqlite-world-writable": Weak(
        lambda file: file.writable,
        "anyone may write {}",
        promise="Any account on this machine can release locks, and add messages that workers run.",
        fix="chmod o-w {}",
    ),
    "sqlite-world-readable": Weak(
        lambda file: file.readable,
        "anyone may read {}",
        promise="Any account on this machine can read the arguments of waiting tasks.",
        fix="chmod o-r {}",
    ),
}


def examine_sqlite(case: Case) -> Iterator[Finding]:
    """``sqlite:///``. There is but one clock."""
    path = Path(case.settings.url.partition("://")[2].partition("/")[2])
    return judged(SQLITE, File(path, broker_url(case.conf)), f"store {path}")
