"""The quick starts: the README of each is followed line by line, in a copy of its project.

Only the port is another one, and the payment provider answers when the page says so.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.test_code_blocks import ROOT, run
from tests.services.ports import free_ports
from tests.services.redis import RedisServer

pytestmark = pytest.mark.slow

PROJECTS = sorted((ROOT / "example_project/quickstart").glob("*/README.md"))
each_project = pytest.mark.parametrize(
    "readme", [pytest.param(readme, id=readme.parent.name) for readme in PROJECTS]
)


def follow(readme: Path, folder: Path, **environment: str) -> None:
    left_behind = shutil.ignore_patterns("*.db*", "__pycache__")
    shutil.copytree(readme.parent, folder, ignore=left_behind, dirs_exist_ok=True)
    [port] = free_ports(1)
    replace(folder / "README.md", "8000", str(port))
    [tasks] = folder.glob("*/tasks.py")
    replace(tasks, "import time", "import os\nimport time")
    replace(tasks, "time.sleep(5)", "while not os.path.exists('answered'): time.sleep(0.02)")
    done = run(folder / "README.md", folder, **environment)
    assert done.returncode == 0, done.stdout


def replace(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert old in text
    file.write_text(text.replace(old, new))


@each_project
def test_without_a_server(readme: Path, tmp_path: Path) -> None:
    follow(readme, tmp_path, WITHOUT_REDIS="1")


@pytest.mark.server("redis")
@each_project
def test_on_one_redis(readme: Path, tmp_path: Path, own_redis_server: RedisServer) -> None:
    follow(readme, tmp_path, REDIS_URL=own_redis_server.url.rpartition("/")[0])
