"""What Celery tells of its configuration has no password of ours."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery

from celery_dlock.ops.doctor.examine import examine_report
from celery_dlock.ops.doctor.finding import Case
from celery_dlock.settings import Settings
from tests.inspection.patients import patient
from tests.services.hostile import PASSWORD
from tests.services.redis import RedisServer
from tests.services.until import until
from tests.workers.conftest import MakeLab, make_lab

__all__ = ["make_lab"]

CONFIGURED: list[dict[str, Any]] = [
    {"url": f"redis://:{PASSWORD}@h/2"},
    {"url": f"redis://h/2?password={PASSWORD}"},
    {"url": f"etcd://user:{PASSWORD}@h,i", "history": f"postgresql://u:{PASSWORD}@h/x"},
    {"url": "memory://", "history": {"url": f"postgresql://u:{PASSWORD}@h/x", "keep": 60}},
    {"url": "redis://h", "backend_options": {"password": PASSWORD}},
    {"url": "redis://h", "backend_options": {"sentinel_kwargs": {"password": PASSWORD}}},
]


@pytest.mark.parametrize("configured", CONFIGURED)
@pytest.mark.parametrize("namespace", [None, "CELERY", "celery"])
def test_a_bug_report_has_none(namespace: str | None, configured: dict[str, Any]) -> None:
    start = f"{namespace}_dlock_" if namespace else "dlock_"
    spell = str.upper if namespace == "CELERY" else str.lower
    app = Celery("shop", set_as_current=False, broker="memory://")
    given = {spell(start + name): value for name, value in configured.items()}
    app.config_from_object(SimpleNamespace(**given), namespace=namespace)

    told = app.bugreport() + repr(app.conf.table(with_defaults=True))
    assert "********" in told
    assert PASSWORD not in told
    assert PASSWORD in repr(app.conf.table(censored=False)), "else nothing was configured"


def test_nor_has_celery_report_where_no_lock_was_used(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(
        "from celery import Celery\n"
        f"app = Celery('shop', broker='memory://')\napp.conf.dlock_url = 'redis://:{PASSWORD}@h'\n"
    )
    command = [sys.executable, "-m", "celery", "-A", "shop", "report"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True)

    assert "dlock_url: '********'" in done.stdout
    assert PASSWORD not in done.stdout


@pytest.mark.server("redis")
def test_nor_has_a_worker_that_is_asked_for_its_configuration(
    make_lab: MakeLab, redis_server: RedisServer, tmp_path: Path
) -> None:
    config = {
        "broker_url": redis_server.url,
        "broker_transport": "redis",
        "broker_transport_options": {},
        "dlock_url": f"{redis_server.url}?client_name={PASSWORD}",
        "dlock_history": {"url": f"sqlite:///{tmp_path / PASSWORD}"},
    }
    lab = make_lab(config)
    # Asked again, for a worker is ready before it listens to what is said to all over Redis
    with lab.worker("solo"):
        inspect = lab.app.control.inspect(timeout=5, limit=1)
        said = until("it is told", lambda: inspect.conf(with_defaults=True))
    (conf,) = said.values()
    assert conf["dlock_url"] == conf["dlock_history"]["url"] == "********"
    assert PASSWORD not in repr(said)


@pytest.mark.parametrize(
    ("options", "shown"),
    [
        ({"password": PASSWORD}, False),
        ({"nodes": [{"password": PASSWORD}]}, True),
        ({"credential": PASSWORD}, True),
    ],
)
def test_a_password_shown_is_found(tmp_path: Path, options: dict[str, Any], shown: bool) -> None:
    with patient(tmp_path) as app:
        app.conf.dlock_backend_options = options
        found = list(examine_report(Case(app, Settings(url="memory://"), float)))
    assert [finding.check for finding in found] == ["password-reported"] * shown
    assert PASSWORD not in repr(found)
