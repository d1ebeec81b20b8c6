"""The processor time of a test is that of its process and of what it started, and is added up."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.once

#: A fifth of a second each: in the process, in one that ended, below that, in one that lives on.
TESTS = """
import subprocess, sys, time

import pytest

BURN = "import time\\nwhile time.process_time() < 0.2: pass\\n"
SPAWN = f"import subprocess, sys\\nsubprocess.Popen([sys.executable, '-c', {BURN!r}]).wait()\\n"
SLEEP = BURN + "print('done', flush=True)\\ninput()"
RUNNING = []

def test_idle_before():
    pass

@pytest.mark.planted
def test_itself():
    exec(BURN.replace("0.2", f"{time.process_time()} + 0.2"))

def test_an_ended_one():
    subprocess.run([sys.executable, "-c", BURN], check=True)

def test_below_another():
    subprocess.run([sys.executable, "-c", SPAWN], check=True)

def test_one_that_lives_on():
    child = subprocess.Popen(
        [sys.executable, "-c", SLEEP], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    child.stdout.readline()
    RUNNING.append(child)

def test_that_only_ends_it():
    RUNNING[0].communicate(b"\\n")
"""


def test_each_test_has_what_it_spent_in_the_table_of_its_folder_and_kind(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "test_burning.py").write_text(TESTS)
    junit = tmp_path / "junit"
    options = ("-p", "tests.services.spent", "-p", "no:cacheprovider", "-o", "junit_family=xunit1")
    folders = (f"--rootdir={tmp_path}", f"--junit-xml={junit / 'burning.xml'}", str(tmp_path))
    command = [sys.executable, "-m", "pytest", "-c", "/dev/null", *options, *folders]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout

    xml = (junit / "burning.xml").read_text()
    spent = {
        name: float(seconds)
        for name, seconds in re.findall(
            r'name="test_(\w+)".*?name="processor_seconds" value="([-\d.]+)"', xml
        )
    }
    burning = {"itself", "an_ended_one", "below_another", "one_that_lives_on"}
    assert {name for name, seconds in spent.items() if seconds > 0.15} == burning

    summary = [sys.executable, "scripts/summary.py", str(junit)]
    printed = subprocess.run(summary, check=True, capture_output=True, text=True).stdout
    rows = {words[0]: words[1:] for words in map(str.split, printed.splitlines()) if words}
    assert rows["tests/test_burning"][0] == "6"
    assert float(rows["tests/test_burning"][1]) >= 0.7
    assert re.search(r"^planted defects +1 ", printed, re.MULTILINE)
    assert re.search(r"^others without a server +5 ", printed, re.MULTILINE)
    assert float(rows["starting"][2]) > 0.0
    assert printed.splitlines()[-1] == "6 passed, 0 failed, 0 skipped"
