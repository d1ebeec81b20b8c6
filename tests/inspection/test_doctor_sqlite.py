"""What the doctor finds about the file that keeps locks, and about locks in memory."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from celery_dlock import lock
from celery_dlock.ops.doctor.examine import examine
from celery_dlock.ops.doctor.finding import Case, judged
from celery_dlock.ops.doctor.local import MOUNTS, SQLITE, File, examine_sqlite
from celery_dlock.settings import Settings
from tests.inspection.patients import bad, found, lies_in_memory, patient

MEMORY_DISK = Path("/dev/shm")


@pytest.fixture
def tmp_path(tmp_path: Path) -> Path:
    """A folder of which nothing is found."""
    if lies_in_memory(tmp_path):
        pytest.skip("temporary files are in memory here")
    return tmp_path


def url(path: Path) -> str:
    return f"sqlite:///{path}"


def test_nothing_is_found_in_a_file_on_a_disk(tmp_path: Path) -> None:
    with patient(tmp_path, dlock_url=url(tmp_path / "locks.db")) as app:
        assert examine(app) == []
        assert not (tmp_path / "locks.db").exists()
        with lock("order:1", app=app):
            assert examine(app) == []


@pytest.mark.skipif(
    not MEMORY_DISK.exists() or not lies_in_memory(MEMORY_DISK), reason="no disk is in memory"
)
def test_a_file_in_memory_is_found(tmp_path: Path) -> None:
    with TemporaryDirectory(dir=MEMORY_DISK) as folder:
        volatile = found(tmp_path, dlock_url=url(Path(folder) / "locks.db"))

    assert volatile == {"sqlite-volatile": "broken"}


@pytest.mark.parametrize("kind", ["nfs4", "cifs", "fuse.sshfs", "9p"])
def test_a_file_on_a_network_share_is_found(tmp_path: Path, kind: str) -> None:
    """The table of mounts is told to have it: nothing can be mounted here."""
    share = tmp_path / "my share"
    share.mkdir()
    mounts = tmp_path / "mounts"
    escaped = str(share).replace(" ", r"\040")
    mounts.write_text(f"{MOUNTS.read_text()}server:/ {escaped} {kind} rw 0 0\n")

    (finding,) = judged(SQLITE, File(share / "locks.db", mounts=mounts), "store")

    assert (finding.check, finding.severity) == ("sqlite-network", "broken")
    assert not list(judged(SQLITE, File(tmp_path / "locks.db", mounts=mounts), "store"))


def test_where_the_file_system_is_not_told_is_no_error(tmp_path: Path) -> None:
    untold = File(tmp_path / "locks.db", mounts=tmp_path / "no table")

    (finding,) = judged(SQLITE, untold, "store")

    assert (finding.check, finding.severity) == ("sqlite-file-system", "unknown")


def test_a_relative_path_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    with patient(tmp_path, dlock_url="sqlite:///locks.db") as app:
        (finding,) = examine(app)

    assert (finding.check, finding.severity) == ("sqlite-relative", "weak")
    assert finding.fix == f"dlock_url = 'sqlite:///{tmp_path}/locks.db'"


def test_what_anybody_may_write_is_found(tmp_path: Path) -> None:
    file, folder = tmp_path / "locks.db", tmp_path / "open"
    folder.mkdir()
    tmp_path.chmod(0o755)
    with patient(tmp_path, dlock_url=url(file)) as app, lock("order:1", app=app):
        file.chmod(0o602)
        assert bad(examine(app)) == {"sqlite-world-writable": "weak"}
        file.chmod(0o644)
        assert bad(examine(app)) == {"sqlite-world-readable": "weak"}
        tmp_path.chmod(0o700)
        assert examine(app) == []
        tmp_path.chmod(0o755)
        file.chmod(0o600)
        assert examine(app) == []
    folder.chmod(0o777)
    assert found(tmp_path, dlock_url=url(folder / "locks.db")) == {"sqlite-world-writable": "weak"}
    folder.chmod(0o1777)  # as /tmp: others make files there, and touch none
    assert found(tmp_path, dlock_url=url(folder / "locks.db")) == {}


def test_a_file_of_another_program_is_found_and_left_alone(tmp_path: Path) -> None:
    text, other = tmp_path / "notes.txt", tmp_path / "shop.db"
    text.write_text("not a database at all")
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE sold (sku TEXT)")
    before = other.read_bytes()

    assert found(tmp_path, dlock_url=url(text)) == {"sqlite-unusable": "broken"}
    assert found(tmp_path, dlock_url=url(other)) == {"sqlite-unusable": "broken"}
    assert other.read_bytes() == before
    assert sorted(path.name for path in tmp_path.glob("shop.db*")) == ["shop.db"]


def test_a_folder_that_is_missing_is_found(tmp_path: Path) -> None:
    assert found(tmp_path, dlock_url=url(tmp_path / "gone" / "locks.db")) == {"settings": "broken"}


def test_a_folder_that_workers_may_not_write_is_found(tmp_path: Path) -> None:
    with TemporaryDirectory() as folder, patient(tmp_path) as app:
        Path(folder).chmod(0o555)
        case = Case(app, Settings(url=url(Path(folder) / "locks.db")), clock=float)
        with as_nobody():
            (finding,) = examine_sqlite(case)

    assert (finding.check, finding.severity) == ("sqlite-unusable", "broken")


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may write anything."""
    root = os.geteuid() == 0
    if root:
        os.seteuid(65534)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


@pytest.mark.parametrize(
    ("broker", "hints"),
    [
        ("amqp://rabbit.invalid//", ["sqlite-hosts"]),
        ("redis://10.1.2.3:6379/0", ["sqlite-hosts"]),
        ("redis://localhost:6379/0", []),
        ("amqp://guest@127.0.0.1//", []),
        ("filesystem://elsewhere", []),
        ("redis+socket:///run/redis.sock", []),
        ("amqp://", []),
    ],
)
def test_a_broker_for_all_machines_is_a_hint(tmp_path: Path, broker: str, hints: list[str]) -> None:
    """It is not asked for more than its name."""
    conf: dict[str, Any] = {
        "broker_url": broker,
        "broker_transport": None,
        "broker_transport_options": {},
    }
    with patient(tmp_path, dlock_url=url(tmp_path / "locks.db"), **conf) as app:
        findings = list(examine_sqlite(Case(app, Settings.from_conf(app.conf), clock=float)))

    assert [finding.check for finding in findings] == hints
    assert all(finding.severity == "unknown" for finding in findings)


def test_memory_is_found_wherever_there_is_more_than_one_process(tmp_path: Path) -> None:
    everywhere = {"memory-one-process": "weak"}

    assert found(tmp_path, dlock_url="memory://", worker_pool="threads") == everywhere
    assert found(tmp_path, dlock_url="memory://") == {**everywhere, "memory-prefork": "broken"}
