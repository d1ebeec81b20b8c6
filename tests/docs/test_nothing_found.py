"""The doctor finds nothing in the first settings that a reader sees, with servers as they are told.

The tutorial and the page for Django ask it themselves, in a block of theirs.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from textwrap import dedent

import pytest

from tests.docs.test_code_blocks import ROOT, run
from tests.services.redis import RedisServer
from tests.services.require import require

QUICK_STARTS = ROOT / "example_project/quickstart"
APPS = {
    "django_shop": "django_shop",
    "flask_shop": "make_celery",
    "fastapi_shop": "fastapi_shop",
}
NOTHING = "nothing found"


def doctor(
    folder: Path, app: str, says: str = NOTHING, *, within: Path | None = None, **environment: str
) -> None:
    """Ask it of an application that is imported from *within* a folder, from *folder* if none."""
    page = folder / "doctor.md"
    page.write_text(f"```console\n$ celery -A {app} dlock doctor\n{says}\n```\n")
    done = run(page, within or folder, **environment)
    assert done.returncode == 0, done.stdout


def as_told(page: str) -> Iterator[RedisServer]:
    """A Redis with the options that *page* names, as it names them first."""
    require("redis")
    named = re.findall(r"\b(appendonly|appendfsync|maxmemory-policy) (\w+)", page)
    options = [word for name, value in reversed(named) for word in (f"--{name}", value)]
    with RedisServer(*options) as server:
        yield server


@pytest.mark.server("redis")
@pytest.mark.parametrize("name", ["README.md", "docs/how-to/deploy.rst"])
def test_of_what_the_page_shows(name: str, tmp_path: Path) -> None:
    page = (ROOT / name).read_text()
    fenced = re.findall(r"^```python\n([\s\S]*?)^```$", page, re.MULTILINE)
    directive = re.findall(r"^\.\. code-block:: python\n\n((?:   .*\n|\n)+)", page, re.MULTILINE)
    named = [block for block in map(dedent, directive) if block.startswith("# shop.py\n")]
    shop = named or [block for block in fenced if "@locked_task" in block or "app.conf" in block]
    for server in as_told(page):
        code = "".join(shop).replace("locks:6379/0", "locks:6379/2")  # all are on one server here
        code = re.sub(r"(localhost|broker|locks):6379", f"127.0.0.1:{server.port}", code)
        (tmp_path / "shop.py").write_text(code)
        doctor(tmp_path, "shop")


@pytest.fixture
def project(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    left_behind = shutil.ignore_patterns("*.db*", "__pycache__")
    folder = tmp_path / str(request.param)
    shutil.copytree(QUICK_STARTS / folder.name, folder, ignore=left_behind)
    return folder


every_quick_start = pytest.mark.parametrize("project", APPS, indirect=True)


@pytest.mark.server("redis")
@every_quick_start
def test_of_a_quick_start(project: Path) -> None:
    for server in as_told((project / "README.md").read_text()):
        doctor(project, APPS[project.name], REDIS_URL=server.url.rpartition("/")[0])


@every_quick_start
def test_of_a_quick_start_in_files_but_that_it_does_not_know_that_broker(project: Path) -> None:
    doctor(project, APPS[project.name], "unknown  broker-unread ...\n1 unknown", WITHOUT_REDIS="1")


def test_of_the_order_events(tmp_path: Path) -> None:
    doctor(tmp_path, "example_project.events.app", within=ROOT, SHOP_DIR=str(tmp_path))


def test_of_the_shop_but_what_it_makes_good_itself(tmp_path: Path) -> None:
    says = "waived ...\n1 waived"
    doctor(tmp_path, "example_project.shop.app", says, within=ROOT, SHOP_DIR=str(tmp_path))
