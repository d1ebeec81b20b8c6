"""A worker that runs the version of the library after this one, which stores messages anew.

It is this one in a folder of its own, with the next number for what it parks; and as every version
must, it still reads what the one before has parked.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import celery_dlock
from tests.services.lab import Lab
from tests.services.worker import Worker

ROOT = Path(__file__).parents[2]

CHANGES = {
    "SCHEMA = 1\n": "SCHEMA = 2\n",
    'frame["schema"] != SCHEMA': 'frame["schema"] not in (1, SCHEMA)',
}


def next_version(lab: Lab) -> Worker:
    """A worker of *lab*, on the next version."""
    package = lab.folder / "next" / "celery_dlock"
    shutil.copytree(Path(celery_dlock.__file__).parent, package)
    entry = package / "messages" / "envelope.py"
    text = entry.read_text()
    for old, new in CHANGES.items():
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    entry.write_text(text)
    worker = Worker(lab.folder, lab.config, "next", "threads", 4)
    # The folder in which it is started would come first otherwise
    worker._env |= {"PYTHONPATH": f"{package.parent}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}
    return worker
