"""A prefork worker on etcd: its main process forks as long as it lives, and has no gRPC channel."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from tests.services.etcd import EtcdServer
from tests.services.lab import Lab
from tests.services.until import until
from tests.services.worker import Worker
from tests.workers.conftest import MakeLab

pytestmark = pytest.mark.server("etcd")

CHILDREN = 40


def on_etcd(make_lab: MakeLab, server: EtcdServer, **celery: object) -> Lab:
    return make_lab(celery={"dlock_url": server.url, **celery}, sweeps_every=0.02)


def connected(process: psutil.Process, server: EtcdServer) -> bool:
    here = process.net_connections("tcp")
    return any(each.raddr and each.raddr.port == server.port for each in here)


def helper_of(worker: Worker) -> psutil.Process | None:
    children = psutil.Process(worker.pid).children()
    found = [
        child for child in children if "celery_dlock.stores.subprocess" in str(child.cmdline())
    ]
    return found[0] if found else None


def threads_of_grpc(pid: int) -> list[str]:
    names = [path.read_text().strip() for path in Path(f"/proc/{pid}/task").glob("*/comm")]
    return [name for name in names if name.startswith(("grpc", "event_engine", "timer_manager"))]


@pytest.mark.slow
@pytest.mark.timeout(300)  # on a machine with much else to do
def test_replaced_children_fail_no_call(make_lab: MakeLab, own_etcd_server: EtcdServer) -> None:
    lab = on_etcd(make_lab, own_etcd_server, worker_max_tasks_per_child=1)

    with lab.worker("prefork", concurrency=4) as worker:
        before = own_etcd_server.handled()["Range"]
        for number in range(CHILDREN):
            lab.app.tasks["apply"].delay(f"order-{number}", number)
        lab.journal.wait_for("end", CHILDREN, timeout=200)
        swept = own_etcd_server.handled()["Range"] - before
        assert not connected(psutil.Process(worker.pid), own_etcd_server)
        assert not threads_of_grpc(worker.pid)

    starts = lab.journal.read("start")
    assert len({entry["pid"] for entry in starts}) == len(starts) == CHILDREN
    assert "BackendUnavailable" not in worker.log
    assert "a sweep of the lock store failed" not in worker.log
    assert swept > CHILDREN  # the main process was not idle


def test_the_main_process_asks_etcd_through_a_helper_that_ends_with_it(
    make_lab: MakeLab, own_etcd_server: EtcdServer
) -> None:
    lab = on_etcd(make_lab, own_etcd_server)

    with lab.worker("prefork", concurrency=1) as worker:
        helper = until("the helper is there", lambda: helper_of(worker))
        assert helper is not None
        until("the helper is connected", lambda: connected(helper, own_etcd_server))
        lab.app.tasks["apply"].delay("42", 1)
        lab.journal.wait_for("end")
        main = psutil.Process(worker.pid)
        (child,) = (each for each in main.children() if each.pid != helper.pid)
        until("the child is connected", lambda: connected(child, own_etcd_server))
        assert not connected(main, own_etcd_server)
        assert not threads_of_grpc(worker.pid)

        main.kill()  # its child lives on, and has been forked while the helper was there

        until("the helper is gone", lambda: not helper.is_running())
