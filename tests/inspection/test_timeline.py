"""Who held a key, when, and with which token."""

from __future__ import annotations

from pathlib import Path

import pytest

from celery_dlock import Lease, lock
from celery_dlock.monitoring import batching
from celery_dlock.monitoring.history import HistorySink
from celery_dlock.ops.event_text import Clock, describe
from celery_dlock.ops.explain_key import explain_key
from celery_dlock.runtime import forget
from tests.services.desk import open_desk


def test_each_key_has_its_own_token_and_a_parent_that_is_read_has_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HistorySink, "exit_timeout", 60.0)
    with open_desk(dlock_history=f"sqlite:///{tmp_path / 'history.db'}") as desk:
        tokens: dict[str, int] = {}

        @desk.locked(["order:{order}", "stock:{order}"], parents="all", name="charge")
        def charge(order: str, *, lease: Lease) -> None:
            tokens.update(lease.fencing_tokens)

        result = charge.delay("42")
        desk.deliver()
        with lock("order:42", app=desk.app, parents="all") as lease:
            batching.end()

            key = explain_key(desk.app, "order:42")
            assert [(e.event, e.token) for e in key.entries] == [
                ("Acquired", tokens["order:42"]),
                ("Released", None),
                ("Acquired", lease.fencing_token),
            ]
            assert [e.task_id for e in key.entries[:2]] == [result.id, result.id]
            words = describe(key.entries[0], Clock.of(desk.app))
            assert words.endswith(f"took 'order:42' with token {tokens['order:42']}")

            (stock,) = [e for e in explain_key(desk.app, "stock:42").entries if e.token]
            assert stock.token == tokens["stock:42"]
            assert {e.token for e in explain_key(desk.app, "all").entries} == {None}
        forget(desk.app)
    batching.end()
