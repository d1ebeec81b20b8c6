"""The same small set of promises on every pool, with real workers."""

from __future__ import annotations

import pytest

from tests.workers.conftest import MakeLab

POOLS = ["prefork", "threads", "solo", "gevent", "eventlet"]


@pytest.mark.parametrize("pool", POOLS)
def test_tasks_of_one_order_never_overlap_and_their_tokens_grow(
    make_lab: MakeLab, pool: str
) -> None:
    lab = make_lab()

    with lab.worker(pool, concurrency=4):
        sent = [lab.app.tasks["apply"].delay("42", number) for number in range(12)]
        lab.journal.wait_for("end", count=12)

    entries = lab.journal.read(order="42")
    assert [entry["what"] for entry in entries] == ["start", "end"] * 12
    tokens = [entry["token"] for entry in entries[::2]]
    assert tokens == sorted(set(tokens))
    assert {entry["id"] for entry in entries} == {result.id for result in sent}
