"""Real workers on etcd, in each pool that gRPC works in."""

from __future__ import annotations

import pytest

from tests.services.etcd import EtcdServer
from tests.services.until import until
from tests.workers.conftest import MakeLab
from tests.workers.test_pools import check_no_overlap, holders

pytestmark = pytest.mark.server("etcd")


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
@pytest.mark.parametrize("pool", ["prefork", "threads", "solo", "gevent"])
def test_tasks_of_one_order_never_overlap_and_their_tokens_grow(
    make_lab: MakeLab, own_etcd_server: EtcdServer, pool: str, policy: str
) -> None:
    lab = make_lab(celery={"dlock_url": own_etcd_server.url}, lock={"policy": policy})

    with lab.worker(pool, concurrency=4) as worker:
        for number in range(12):
            lab.app.tasks["apply"].delay("42", number)
        lab.journal.wait_for("end", count=12)
        until("the key is free", lambda: not holders(lab, "order:42"))
        assert worker.stop() == 0

    check_no_overlap(lab, "42", 12)
