"""Install each file of a folder into an empty environment, and take a lock there.

The package alone, without an extra: as whoever tries it first.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import venv
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

for file in sorted(Path(sys.argv[1]).iterdir()):
    with tempfile.TemporaryDirectory() as folder:
        venv.create(folder, with_pip=True)
        python = f"{folder}/bin/python"
        install = [python, "-m", "pip", "install", "--quiet", str(file.resolve())]
        subprocess.run(install, check=True)
        subprocess.run([python, "-c", TRY], check=True, cwd=folder)
        print(f"{file.name} installs and takes a lock")
