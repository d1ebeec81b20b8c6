"""``pip install "celery-dlock[etcd]"`` in a fresh environment of this Python: a lock is taken."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import celery_dlock
from tests.services.etcd import EtcdServer

# Not `slow`: the other Pythons run it, each for itself.
pytestmark = pytest.mark.server("etcd")

ROOT = Path(__file__).resolve().parents[2]

CYCLE = """
import sys
import google.protobuf, grpc
from celery_dlock.stores.base import BackendOptions
from celery_dlock.core.state import Claim, Left, Outcome, Run
from celery_dlock.registry import open_backend

store = open_backend(sys.argv[1], BackendOptions())
claim = Claim("key", "task", nonce=sys.version, ttl=30_000_000)
assert isinstance(store.enter(claim).verdict, Run)
assert isinstance(store.leave(claim, Outcome.OVER).verdict, Left)
store.close()

import etcd3  # importable by anybody from now on

print(google.protobuf.__version__, grpc.__version__)
"""


#: It puts things into other environments, too: those need none of their own.
PIP = (sys.executable, "-m", "pip")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What is under test, to be installed from; also where it is an installed wheel itself."""
    folder = tmp_path_factory.mktemp("wheel")
    package = Path(celery_dlock.__file__).parent
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(package, folder / "celery_dlock", ignore=ignored)
    shutil.copy(package.with_name("celery_dlock_pytest.py"), folder)
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "LICENSE").touch()
    subprocess.run([*PIP, "wheel", "-q", "--no-deps", "."], check=True, cwd=folder)
    return next(folder.glob("*.whl"))


#: Which the extra allows; the other Pythons have no such grpcio.
OLDEST = ("protobuf==5.26.*", "grpcio==1.60.*")


@pytest.mark.parametrize(
    "pinned",
    [pytest.param((), id="newest"), pytest.param(OLDEST, id="oldest")][
        : 2 if sys.version_info < (3, 12) else 1
    ],
)
def test_a_lock_is_taken_with_what_the_extra_installs(
    tmp_path: Path, wheel: Path, etcd_server: EtcdServer, pinned: tuple[str, ...]
) -> None:
    python = str(tmp_path / "env" / "bin" / "python")
    env = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    empty = [sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "env")]
    subprocess.run(empty, check=True, env=env)

    install = ["--python", python, "install", "-q", "--no-compile", f"{wheel}[etcd]", *pinned]
    subprocess.run([*PIP, *install], check=True, env=env, cwd=tmp_path)
    cycle = [python, "-W", "error", "-c", CYCLE, etcd_server.url]
    done = subprocess.run(
        cycle, check=True, stdout=subprocess.PIPE, text=True, env=env, cwd=tmp_path
    )

    protobuf, _ = done.stdout.split()
    assert int(protobuf.partition(".")[0]) >= 5
