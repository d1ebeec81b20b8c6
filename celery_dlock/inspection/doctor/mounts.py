"""On which file system a path lies, by Linux's table of mounts."""

from __future__ import annotations

import re
from pathlib import Path

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
