"""Copy what the tests read into the working directory, without the package itself.

The tests then meet ``celery_dlock`` only where pip put it: a file that the wheel forgot is an
error, in the test process and in every worker that it starts.
"""

from __future__ import annotations

import shutil
from pathlib import Path

STAGED = (
    *("tests", "scripts", "example_project", "docs"),
    *("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "Makefile", "pyproject.toml"),
)

root = Path(__file__).resolve().parent.parent
stage = Path.cwd()
if stage.name != "stage":
    raise SystemExit(f"{stage} is emptied here, so it must be called 'stage'")

for old in stage.rglob("*"):
    if old.is_file() and "__pycache__" not in old.parts:  # what is compiled there may do once more
        old.unlink()
for name in STAGED:
    source = root / name
    if source.is_dir():
        ignored = shutil.ignore_patterns("__pycache__", "_build", "var")
        shutil.copytree(source, stage / name, ignore=ignored, dirs_exist_ok=True)
    elif source.exists():
        shutil.copy(source, stage / name)
