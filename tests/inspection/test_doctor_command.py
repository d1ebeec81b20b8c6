"""``celery -A shop dlock doctor``: what is shown, to people and to programs, and how it exits."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import defaultdict
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner, Result

from celery_dlock.cli.main import dlock
from celery_dlock.ops import doctor
from celery_dlock.ops.doctor.examine import examine, secrets_of, shown
from celery_dlock.ops.doctor.finding import SEVERITIES, Check, Checks, Finding, Weak, asked, judged
from celery_dlock.registry import BACKENDS, load
from tests.inspection.patients import bad, lies_in_memory, patient
from tests.services.ports import free_ports

ROOT = Path(__file__).parents[2]


def run(folder: Path, *arguments: str, **conf: Any) -> Result:
    with patient(folder, **conf) as app:
        return CliRunner().invoke(dlock, ["doctor", *arguments], obj=SimpleNamespace(app=app))


def in_threads() -> dict[str, Any]:
    return {"dlock_url": "memory://", "worker_pool": "threads"}


def test_what_is_broken_is_shown_with_what_fixes_it_and_exits_with_one(tmp_path: Path) -> None:
    result = run(tmp_path, dlock_url="memory://")

    assert result.exit_code == 1
    lines = result.output.splitlines()
    assert lines[0] == "broken  memory-prefork  store memory://"
    assert lines[1].strip() == "Each process has locks of its own, so a worker refuses to start."
    assert lines[2].split(maxsplit=1) == ["found", "worker_pool = 'prefork'"]
    assert lines[3].split(maxsplit=1)[0] == "fix"
    assert lines[-1] == "1 broken, 1 weak"


def test_what_is_only_weak_exits_with_zero(tmp_path: Path) -> None:
    result = run(tmp_path, **in_threads())

    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "1 weak")


def test_a_program_reads_the_same(tmp_path: Path) -> None:
    result = run(tmp_path, "--json", dlock_url="memory://")

    (broken, weak) = json.loads(result.output)["findings"]
    assert result.exit_code == 1
    assert broken["check"] == "memory-prefork"
    assert (broken["severity"], weak["severity"]) == ("broken", "weak")
    assert set(broken) == {"check", "severity", "where", "promise", "found", "fix", "waived"}


@pytest.mark.parametrize(("fail_on", "code"), [("broken", 0), ("weak", 1), ("unknown", 1)])
def test_it_can_fail_for_less_than_what_is_broken(tmp_path: Path, fail_on: str, code: int) -> None:
    assert run(tmp_path, "--fail-on", fail_on, **in_threads()).exit_code == code


def test_what_is_waived_is_told_last_with_its_reason_and_fails_nothing(tmp_path: Path) -> None:
    waived = {"dlock_doctor_ignore": {"memory-prefork": "it is for a demo"}}

    result = run(tmp_path, "--fail-on", "weak", dlock_url="memory://", **waived)

    weak, told = result.output.split("\n\n")[:2]
    assert weak.startswith("weak  memory-one-process")
    assert told.splitlines()[0] == "waived  memory-prefork  store memory://"
    assert told.splitlines()[1].split(maxsplit=1) == ["because", "it is for a demo"]
    assert (result.exit_code, result.output.splitlines()[-1]) == (1, "1 weak, 1 waived")
    assert run(tmp_path, dlock_url="memory://", **waived).exit_code == 0


def test_what_keeps_workers_from_starting_is_not_waived(tmp_path: Path) -> None:
    waived = {"dlock_doctor_ignore": {"settings": "no reason is good enough"}}

    assert run(tmp_path, dlock_url="redlock://a,b", **waived).exit_code == 1


def test_a_configuration_that_cannot_be_used_is_no_traceback(tmp_path: Path) -> None:
    result = run(tmp_path, dlock_url="redlock://:hunter2@a,b")

    assert result.exit_code == 1
    assert "at least three nodes" in result.output
    assert "hunter2" not in result.output


def test_a_foreign_store_is_not_examined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("celery_dlock.ops.doctor.examine.BACKENDS", {})

    with patient(tmp_path, **in_threads()) as app:
        assert bad(examine(app)) == {"store-unread": "unknown"}


@pytest.mark.parametrize(
    ("url", "finding"),
    [
        ("redis://:hunter2@{}", {"no-answer": "unknown"}),
        (
            "redis+sentinel://:hunter2@{}/mymaster/0",
            {"sentinel-unavailable": "broken", "no-answer": "unknown"},
        ),
        ("etcd://root:hunter2@{}", {"etcd-unavailable": "broken"}),
        ("zookeeper://shop:hunter2@{}", {"zookeeper-unavailable": "broken"}),
    ],
    ids=["redis", "sentinel", "etcd", "zookeeper"],
)
def test_a_store_where_nobody_answers_is_no_error(
    tmp_path: Path, url: str, finding: dict[str, str]
) -> None:
    (gone,) = free_ports(1)
    with patient(tmp_path, dlock_url=url.format(f"127.0.0.1:{gone}")) as app:
        findings = examine(app)

    assert bad(findings) == finding
    assert "hunter2" not in str(findings)


@pytest.mark.parametrize("scheme", sorted(BACKENDS))
def test_every_store_that_is_registered_is_examined(scheme: str) -> None:
    assert callable(load(BACKENDS[scheme].checks, None, scheme))


@pytest.mark.parametrize(
    ("error", "fix"),
    [
        (RuntimeError("no idea"), "run the doctor where the workers run"),
        (ModuleNotFoundError("No module named 'packaging'"), "celery[…]"),
    ],
)
def test_a_check_that_fails_is_a_finding_after_those_before_it(error: Exception, fix: str) -> None:
    """That a driver is missing is not said to be the silence of a server."""

    def fails(_: None) -> None:
        raise error

    texts = ("found", "promise", "fix")
    checks: Checks[None] = {"first": Weak(lambda _: True, *texts), "second": Weak(fails, *texts)}
    before, last = asked("store", judged(checks, None, "store"))

    assert before.check == "first"
    assert (last.check, last.severity) == ("no-answer", "unknown")
    assert last.found == f"{type(error).__name__}: {error}"
    assert fix in last.fix


@pytest.mark.parametrize(
    "conf",
    [
        {"broker_url": "amqp://shop:p%40ss%2Fw@rabbit//"},
        {"broker_url": ["redis://h", "redis://:p%40ss%2Fw@h2/1"]},
        {"broker_url": "amqp://a@h;amqp://shop:p%40ss%2Fw@rabbit//"},
        {"result_backend": "db+postgresql://shop:p@ss/w@db/shop"},
        {"dlock_url": "redis://h?password=p%40ss%2Fw"},
        {"dlock_url": "redlock://a,[::1]:2,b?password=p%40ss%2Fw"},
        {"dlock_backend_options": {"sentinel_kwargs": {"password": "p@ss/w"}}},
        {"dlock_backend_options": {"sasl_options": {"password": "p@ss/w"}}},
        {"broker_password": "p@ss/w"},
        {"dlock_history": {"url": "postgresql://shop:p@ss/w@db/shop"}},
    ],
)
def test_a_password_is_hidden_wherever_it_stands(conf: dict[str, Any]) -> None:
    said = "AUTH p@ss/w"
    finding = Finding("redis-config", "unknown", said, "promise", said, said)

    plain = shown(finding, secrets_of(conf))

    assert (plain.where, plain.found, plain.fix) == ("AUTH ***",) * 3


def test_what_a_server_says_does_not_steer_the_terminal() -> None:
    hostile = "\x1b]0;owned\x07[bold red]\n"
    finding = Finding("redis-config", "unknown", hostile, "promise", hostile, hostile)

    assert shown(finding, ()).found.isprintable()
    assert "[bold red]" in shown(finding, ()).found


def test_no_driver_is_needed_that_the_application_does_not_use(tmp_path: Path) -> None:
    """The extras bring them."""
    program = (
        "import sys\n"
        "sys.modules.update(dict.fromkeys(['redis', 'kazoo', 'etcd3', 'grpc']))\n"
        "from celery import Celery\n"
        "from celery_dlock.ops.doctor.examine import examine\n"
        "app = Celery('shop', broker='memory://')\n"
        f"app.conf.dlock_url = 'sqlite:///{tmp_path}/locks.db'\n"
        "print(*{finding.check for finding in examine(app)} - {'sqlite-volatile'})\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False, cwd=ROOT
    )

    assert done.stdout.split() == ["broker-memory"], done.stderr


def test_every_check_is_in_the_documentation_and_in_a_test() -> None:
    """A check that finds nothing any more fails the test that names it; one without fails here."""
    page = (ROOT / "docs/how-to/doctor.rst").read_text()
    rows = re.findall(r"^   \* - ``([a-z-]+)``\n     - (.+)\n", page, re.MULTILINE)
    documented = {name: set(re.findall("|".join(SEVERITIES), cell)) for name, cell in rows}
    tests = "".join(path.read_text() for path in Path(__file__).parent.glob("test_doctor_*.py"))
    tested = set(re.findall(r'"([a-z]+(?:-[a-z]+)*)"', tests))

    assert len(rows) == len(documented)
    assert documented == _checks()
    assert _checks().keys() - tested == set()


def _checks() -> dict[str, set[str]]:
    """The checks of all tables of the doctor, and what each may find."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for module in iter_modules(doctor.__path__, f"{doctor.__name__}."):
        tables = [it for it in vars(import_module(module.name)).values() if isinstance(it, dict)]
        for name, row in (row for table in tables for row in table.items()):
            for check in row if isinstance(row, tuple) else (row,):
                if isinstance(check, Check):
                    found[name] |= {check.usual, "broken" if check.broken else check.usual}
    return found


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ("example_project.events.app", {}),
        # It is so: the shop publishes again what a killed worker had.
        ("example_project.shop.app", {"broker-filesystem": "weak"}),
    ],
)
def test_in_the_demo_nothing_is_found_that_is_not_so(
    tmp_path: Path, app: str, expected: dict[str, str]
) -> None:
    """Run as it is by people."""
    if lies_in_memory(tmp_path):
        pytest.skip("temporary files are in memory here")
    result = subprocess.run(
        [sys.executable, "-m", "celery", "-A", app, "dlock", "doctor", "--json"],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "SHOP_DIR": str(tmp_path)},
        check=False,
    )

    assert result.returncode == 0, result.stderr
    findings = json.loads(result.stdout)["findings"]
    assert {finding["check"]: finding["severity"] for finding in findings} == expected
