"""``python try_dist.py FOLDER AGAIN``: the files to release are what they should be.

A second build has given the same bytes, and in the wheel lies nothing but the package, the pytest
plugin and what describes them. Then each file is installed into an empty environment, and takes a
lock there: the package alone, without an extra, as whoever tries it first.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

TRY = """
from celery import Celery
from celery_dlock import locked_task

app = Celery("shop", broker="memory://", set_as_current=False)
app.conf.dlock_url = "sqlite:///locks.db"

@locked_task("order:{order_id}", app=app)
def charge(order_id, *, fencing_token):
    return fencing_token

assert (charge(1), charge(1)) == (1, 2)
"""

#: Names in the wheel.
EXPECTED = re.compile(
    r"(celery_dlock/.+\.(py|lua|json|yml|html|css|js|svg)|celery_dlock/(py\.typed|web/static/LICENCES\.txt)"
    r"|celery_dlock_pytest\.py|celery_dlock-[^/]+\.dist-info/.+)$"
)

folder, again = map(Path, sys.argv[1:])
for file in sorted(folder.iterdir()):
    if file.read_bytes() != (again / file.name).read_bytes():
        sys.exit(f"{file.name} is not built the same twice")
    if file.suffix == ".whl":
        names = zipfile.ZipFile(file).namelist()
        strange = [name for name in names if not EXPECTED.match(name)]
        if strange:
            sys.exit(f"{file.name} has {', '.join(strange)}")
    with tempfile.TemporaryDirectory() as environment:
        venv.create(environment, with_pip=True)
        python = f"{environment}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", str(file.resolve())]
        subprocess.run(install, check=True)
        subprocess.run([python, "-c", TRY], check=True, cwd=environment)
        print(f"{file.name} installs and takes a lock")
