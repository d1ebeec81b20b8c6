"""``make rehearse``: a release as strangers meet it, from a fresh clone of the last commit.

The files are built. From then on celery-dlock is installed by its name, from an index in a folder,
and all else from where pip looks anyway. Each quick start is tested with what its requirements say
and nothing more. In an environment of the lock the quick starts are followed line by line, the
documentation is built and opened in a browser, and the table of licences is compared. A program
that is missing fails its step. All is left in ``build/rehearsal``, with the log of each step.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PLACE = ROOT / "build/rehearsal"
CLONE, INDEX, STAGE = PLACE / "clone", PLACE / "simple", PLACE / "stage"
BOUND = 1800  # seconds for a command


@contextmanager
def step(title: str) -> Iterator[None]:
    """Print a line with the outcome; a failure prints its log and ends the rehearsal."""
    begun = time.monotonic()
    (PLACE / "log.txt").write_text("")
    try:
        yield
    except (subprocess.SubprocessError, OSError, AssertionError) as failure:
        print((PLACE / "log.txt").read_text()[-4000:])
        sys.exit(f"FAILED {time.monotonic() - begun:5.0f} s  {title}: {failure}")
    log = (PLACE / "log.txt").read_text()
    (PLACE / f"{re.sub(r'[^a-z0-9]+', '-', title.lower())}.txt").write_text(log)
    last_line = log.strip().rpartition("\n")[2]
    print(f"ok {time.monotonic() - begun:5.0f} s  {title}: {last_line}", flush=True)


def run(folder: Path, *command: str | Path, environment: Path | None = None) -> None:
    env = {**os.environ, "CI": "true"}  # what is missing is an error
    if environment:
        env["PATH"] = f"{environment / 'bin'}{os.pathsep}{env['PATH']}"
    with (PLACE / "log.txt").open("a") as log:
        subprocess.run(
            command,
            check=True,
            cwd=folder,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            timeout=BOUND,
        )


def note(text: str) -> None:
    with (PLACE / "log.txt").open("a") as log:
        log.write(f"{text}\n")


def build() -> Path:
    """The files to release, as a folder of an index; the wheel."""
    run(CLONE, "scripts/tox", "run", "-e", "dist")
    shutil.copytree(CLONE / ".tox/dist/tmp/dist", INDEX / "celery-dlock")
    files = sorted((INDEX / "celery-dlock").iterdir())
    hashes = {file: sha256(file.read_bytes()).hexdigest() for file in files}
    links = [f'<a href="{file.name}#sha256={hashes[file]}">{file.name}</a>' for file in files]
    (INDEX / "celery-dlock/index.html").write_text("<br>\n".join(links))
    note(", ".join(f"{file.name} {file.stat().st_size} bytes" for file in files))
    [wheel] = (file for file in files if file.suffix == ".whl")
    return wheel


def install(environment: Path, wheel: Path, *wanted: str) -> None:
    """Install by name; what is installed has to be *wheel*, byte for byte."""
    _, version, *_ = wheel.name.split("-")
    (PLACE / "version.txt").write_text(f"celery-dlock=={version}\n")
    python = environment / "bin/python"
    index = ("--extra-index-url", INDEX.as_uri(), "--constraint", str(PLACE / "version.txt"))
    report = PLACE / "report.json"
    run(CLONE, python, "-m", "pip", "install", *index, "--report", report, *wanted)
    hashes = [
        item["download_info"]["archive_info"]["hashes"]["sha256"]
        for item in json.loads(report.read_text())["install"]
        if item["metadata"]["name"] == "celery-dlock" and not item["is_direct"]
    ]
    assert hashes == [sha256(wheel.read_bytes()).hexdigest()], "another celery-dlock was installed"


def empty_environment(name: str) -> Path:
    environment = PLACE / name
    run(PLACE, sys.executable, "-m", "venv", environment)
    return environment


def main() -> None:
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    with step("A fresh clone"):
        run(ROOT, "scripts/install-servers")
        run(ROOT, "git", "clone", "--quiet", ROOT, CLONE)
        run(CLONE, "git", "log", "-1", "--format=%h %s")
    with step("Files, built twice to the same bytes, on the lowest and the newest versions"):
        wheel = build()
    for project in sorted((CLONE / "example_project/quickstart").glob("*/")):
        with step(f"{project.name} by its requirements, and its tests"):
            environment = empty_environment(project.name)
            install(environment, wheel, "--requirement", str(project / "requirements.txt"))
            tests = re.search(
                r"## Test it\n\n```console\n\$ (.+)", (project / "README.md").read_text()
            )
            assert tests, "its README names no tests"
            run(project, *tests[1].split(), environment=environment)
    with step("An environment of the lock"):
        locked = empty_environment("locked")
        lock = CLONE / "tests/lock.txt"
        run(CLONE, locked / "bin/python", "-m", "pip", "install", "--require-hashes", "-r", lock)
        install(locked, wheel, "celery-dlock[all]")
        STAGE.mkdir()
        run(STAGE, locked / "bin/python", CLONE / "scripts/stage.py")
        run(CLONE, locked / "bin/python", "-m", "pip", "check")
    pytest = (locked / "bin/python", "-m", "pytest", "-q", "-p", "no:cacheprovider")
    with step("The quick starts, followed line by line"):
        run(STAGE, *pytest, "tests/docs/test_quick_starts.py", environment=locked)
    with step("The documentation, built and opened in a browser"):
        pictures = f"--basetemp={PLACE / 'site'}"
        run(STAGE, *pytest, pictures, "tests/docs/test_site.py", environment=locked)
    with step("The table of licences"):
        run(STAGE, locked / "bin/python", "-m", "scripts.licences", "--check")
    print(f"The files are in {wheel.parent}, pictures of the documentation in {PLACE / 'site'}")


if __name__ == "__main__":
    main()
