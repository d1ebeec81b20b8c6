"""``pip install "celery-dlock[etcd]"`` in a fresh environment of this Python: a lock is taken.

And so it is by whoever cannot install etcd3 any more, and installs etcd-sdk-python in its place.
"""

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
import importlib, sys
import google.protobuf, grpc
from celery_dlock.stores.base import BackendOptions
from celery_dlock.core.state import Claim, Left, Outcome, Run
from celery_dlock.registry import open_backend

store = open_backend(sys.argv[1], BackendOptions())
claim = Claim("key", "task", nonce=sys.version, ttl=30_000_000)
assert isinstance(store.enter(claim).verdict, Run)
assert isinstance(store.leave(claim, Outcome.OVER).verdict, Left)
store.close()

importlib.import_module(sys.argv[2])  # by anybody from now on

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


#: What the page of the store says.
IN_ITS_PLACE = ("etcd-sdk-python", "protobuf>=5.26", "grpcio>=1.60")

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
    assert a_lock_is_taken(tmp_path, etcd_server, "etcd3", f"{wheel}[etcd]", *pinned) >= 5


@pytest.mark.once
def test_a_lock_is_taken_with_what_is_installed_in_place_of_etcd3(
    tmp_path: Path, wheel: Path, etcd_server: EtcdServer
) -> None:
    assert a_lock_is_taken(tmp_path, etcd_server, "pyetcd", str(wheel), *IN_ITS_PLACE) >= 5


def a_lock_is_taken(folder: Path, server: EtcdServer, package: str, *installed: str) -> int:
    """In an environment with *installed* and nothing else; the version of its protobuf."""
    python = str(folder / "env" / "bin" / "python")
    env = {name: v for name, v in os.environ.items() if not name.startswith("PYTHON")}
    empty = [sys.executable, "-m", "venv", "--without-pip", str(folder / "env")]
    subprocess.run(empty, check=True, env=env)

    install = ["--python", python, "install", "-q", "--no-compile", *installed]
    subprocess.run([*PIP, *install], check=True, env=env, cwd=folder)
    cycle = [python, "-W", "error", "-c", CYCLE, server.url, package]
    done = subprocess.run(cycle, check=True, stdout=subprocess.PIPE, text=True, env=env, cwd=folder)

    protobuf, _ = done.stdout.split()
    return int(protobuf.partition(".")[0])


@pytest.mark.once
@pytest.mark.slow
def test_in_place_of_etcd3_it_keeps_the_contract(tmp_path: Path) -> None:
    """A part of it: the messages are what differs, and each of its operations sends them."""
    (tmp_path / "without_etcd3.py").write_text("import sys\nsys.modules['etcd3'] = None\n")
    install = ("install", "-q", "--no-deps", "--target", str(tmp_path), "etcd-sdk-python")
    subprocess.run([*PIP, *install], check=True)
    found = os.pathsep.join((str(tmp_path), os.environ.get("PYTHONPATH", "")))
    contract = ("-p", "without_etcd3", "-p", "no:cacheprovider", "tests/contract/test_etcd.py")
    part = ("-k", "concurrent or crowd or renew or sweep or page or note")
    subprocess.run(
        [sys.executable, "-m", "pytest", "-q", *contract, *part],
        check=True,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": found},
    )


def test_without_either_it_is_said() -> None:
    program = (
        "import sys\nsys.modules.update(dict.fromkeys(['etcd3', 'pyetcd']))\n"
        "from celery_dlock.registry import backend_class\n"
        "try: backend_class('etcd://localhost')\nexcept Exception as error: print(error)\n"
    )
    command = [sys.executable, "-c", program]
    told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert 'pip install "celery-dlock[etcd]"' in told
    assert "etcd-sdk-python" in told
