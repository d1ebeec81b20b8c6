"""``python try_dist.py FOLDER AGAIN``: the files to release are what they should be.

A second build has given the same bytes, and in the wheel lies nothing but the package, the pytest
plugin and what describes them. The description that an index shows has no link or picture that it
lacks. Then each file is installed into an empty environment, and takes a lock there: the package
alone, without an extra, as whoever tries it first, on the newest and on the lowest versions of what
it needs.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from email.parser import Parser
from pathlib import Path

from readme_renderer import markdown  # as PyPI does

TRY = """
from celery import Celery
from celery_dlock import locked_task

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.dlock_url = "sqlite:///locks.db"

@locked_task("order:{order_id}", app=app)
def charge(order_id, *, fencing_token):
    return fencing_token

assert 0 < charge(1) < charge(1)
"""

#: Names in the wheel.
EXPECTED = re.compile(
    r"(celery_dlock/.+\.(py|lua|json|yml|html|css|js|svg)|celery_dlock/(py\.typed|web/static/LICENCES\.txt)"
    r"|celery_dlock_pytest\.py|celery_dlock-[^/]+\.dist-info/.+)$"
)

LOWEST = Path(__file__).resolve().parents[1] / "tests/floors.txt"


def check_names(wheel: zipfile.ZipFile) -> None:
    strange = [name for name in wheel.namelist() if not EXPECTED.match(name)]
    if strange:
        sys.exit(f"the wheel has {', '.join(strange)}")


def check_description(wheel: zipfile.ZipFile) -> None:
    [name] = [name for name in wheel.namelist() if name.endswith(".dist-info/METADATA")]
    page = markdown.render(Parser().parsestr(wheel.read(name).decode()).get_payload()) or ""
    addresses = re.findall(r'(?:href|src)="([^"#]+)', page)
    relative = [address for address in addresses if not address.startswith("https://")]
    if relative or "<h1" not in page:
        sys.exit(f"the description on an index has no {', '.join(relative) or 'title'}")
    print(f"the description on an index has {page.count('<img')} pictures, {len(addresses)} links")


def try_alone(file: Path, *constraints: str) -> None:
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        python = f"{environment}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", str(file.resolve()), *constraints]
        subprocess.run(install, check=True)
        subprocess.run([python, "-c", TRY], check=True, cwd=environment)


folder, again = map(Path, sys.argv[1:])
for file in sorted(folder.iterdir()):
    if file.read_bytes() != (again / file.name).read_bytes():
        sys.exit(f"{file.name} is not built the same twice")
    if file.suffix == ".whl":
        with zipfile.ZipFile(file) as wheel:
            check_names(wheel)
            check_description(wheel)
        try_alone(file, "--constraint", str(LOWEST))
    try_alone(file)
    print(f"{file.name}, {file.stat().st_size // 1024} KiB, installs and takes a lock")
