"""Where the settings come from: a namespace, Django's settings, each in a process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TASK = """
from celery_dlock import locked_task

@locked_task("order:{order}", app=app, name="charge")
def charge(order, *, fencing_token, lease):
    return [lease.key, lease.ttl]

print(charge.apply(("42",)).get(), file=__import__("sys").stderr)
"""

DJANGO = """
import os
os.environ["DJANGO_SETTINGS_MODULE"] = "shop_settings"
import django
django.setup()
from celery import Celery
app = Celery("shop")
app.config_from_object("django.conf:settings", namespace="CELERY")
"""

SETTINGS = """
SECRET_KEY = "x"
CELERY_RESULT_BACKEND = "cache+memory://"
CELERY_DLOCK_URL = "sqlite:///{folder}/locks.db"
CELERY_DLOCK_TTL = 7.5
{extra}
"""


def run(code: str, folder: Path) -> str:
    script = folder / "shop.py"
    script.write_text(code)
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, check=False)
    return done.stderr


def test_djangos_settings_are_read(tmp_path: Path) -> None:
    settings = SETTINGS.format(folder=tmp_path, extra="")
    (tmp_path / "shop_settings.py").write_text(settings)

    said = run(DJANGO + TASK, tmp_path)

    assert "['order:42', 7.5]" in said
    assert (tmp_path / "locks.db").exists()


def test_an_unknown_setting_of_djangos_is_named_as_it_is_spelt(tmp_path: Path) -> None:
    settings = SETTINGS.format(folder=tmp_path, extra="CELERY_DLOCK_REQIRE = []")
    (tmp_path / "shop_settings.py").write_text(settings)

    said = run(DJANGO + TASK, tmp_path)

    assert "unknown setting CELERY_DLOCK_REQIRE; did you mean 'CELERY_DLOCK_REQUIRE'?" in said
