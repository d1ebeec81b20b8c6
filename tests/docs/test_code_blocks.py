"""What README and docs show is run, one page at a time, each in a process of its own."""

from __future__ import annotations

import contextlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryFile

import pytest

from tests.docs.page import languages
from tests.docs.shell import commands
from tests.docs.warm import server
from tests.services.fork_server import ask
from tests.services.require import require

ROOT = Path(__file__).resolve().parents[2]
FILES = ("README.md", "CONTRIBUTING.md", "docs/**/*.rst", "docs/**/*.md")
PAGES = sorted(str(page.relative_to(ROOT)) for files in FILES for page in ROOT.glob(files))

#: Pages that start a server of the tests in a block that is not shown, or run another program.
SERVERS = {
    "docs/how-to/django.rst": "postgresql",
    "docs/how-to/fence-redis-data.rst": "redis",
    "docs/how-to/from-redbeat.rst": "redis",
    "docs/how-to/metrics.rst": "promtool",
}


@dataclass(frozen=True)
class Ended:
    """What became of a page."""

    returncode: int
    stdout: str


def run(page: Path, folder: Path, **environment: str) -> Ended:
    module = (sys.executable, "-m", "tests.docs.page", str(page))
    env = {**os.environ, **environment, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"}
    with TemporaryFile() as output:
        with contextlib.chdir(folder):
            process = ask(server(), module, output.fileno(), env)
        try:
            code = process.wait()
        finally:
            process.terminate()
        output.seek(0)
        return Ended(code, output.read().decode())


@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.server(SERVERS[page]) if page in SERVERS else ())
        for page in PAGES
    ],
)
def test_every_code_block_of_the_page_runs(page: str, tmp_path: Path) -> None:
    if page in SERVERS:
        require(SERVERS[page])
    if languages(ROOT / page) <= {"text"}:
        return  # a process for nothing
    done = run(ROOT / page, tmp_path)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize(
    ("block", "complaint"),
    [
        ("```python\nassert 1 == 2\n```", "AssertionError"),
        ("```python\nimport nonsense_\n```", "No module named 'nonsense_'"),
        ("```console\n$ exit 3\n```", "$ exit 3"),
        ("```console\n$ echo one\ntwo\n```", "and not\ntwo"),
        ("```console\n$ make nonsense\n```", "nonsense"),
        ("```console\n$ celery nonsense\n```", "No such command"),
        ("```console\n$ celery --version\none\n```", "and not\none"),
        ("```console\n$ python -m nonsense_\n```", "No module named nonsense_"),
        ("```console\n$ celery -A nonsense_ worker &\n```", "Unable to load celery application"),
        ("```console\n$ pip install celery-dlock[nonsense]\n```", "nonsense"),
        ("```console\n$ python -m pytest tests/nonsense.py\n```", "nonsense"),
        ("```yaml\none: [\n```", "expected the node content"),
        ("```ini\n# one.service\none\n```", "File contains no section headers"),
        ("```sh\necho\n```", "no way to run blocks of sh"),
        ("```\necho\n```", "a block that names no language"),
    ],
)
def test_a_block_that_fails_fails_its_page(block: str, complaint: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"# A page\n\n{block}\n")

    done = run(page, tmp_path)

    assert done.returncode != 0
    assert complaint in done.stdout


def test_blocks_share_names_files_and_what_was_started(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "```python\none = 1\n```\n"
        "```python\n# made/by_page.py\ntwo = 2\n```\n"
        "```console\n$ python -c 'import time; print(\"ready\"); time.sleep(99)' &\n```\n"
        "```console\n$ python -c 'from made.by_page import two; print(two)'\n2\n```\n"
        "```python\nfrom made.by_page import two\nassert one + two == 3\n```\n"
    )

    done = run(page, tmp_path)

    assert done.returncode == 0, done.stdout
    assert done.stdout.splitlines()[-1] == "5 blocks ran"


def test_a_command_is_told_from_what_it_prints() -> None:
    block = "$ make demo\nworking\ndone\n$ make test\n"

    assert list(commands(block)) == [("make demo", "working\ndone"), ("make test", "")]
