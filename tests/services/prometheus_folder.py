"""A folder in which processes count together for Prometheus, named in the environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest.mock import patch

VARIABLE = "PROMETHEUS_MULTIPROC_DIR"


@contextmanager
def shared_folder(where: Path) -> Iterator[Path]:
    """Whatever is started meanwhile counts in *where*, which is made."""
    where.mkdir()
    with patch.dict(os.environ, {VARIABLE: str(where)}):
        yield where
