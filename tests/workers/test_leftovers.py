"""A task that goes elsewhere leaves nothing in its worker, not even for the garbage collector."""

from __future__ import annotations

import gc
from traceback import walk_tb

import pytest
from billiard.einfo import ExceptionInfo, Traceback
from celery.app import trace

from celery_dlock import Policy, Queue, Reschedule, lock
from celery_dlock.delivery.execution import Execution
from celery_dlock.worker.request import LockedRequest
from tests.services.desk import Desk


def kept() -> list[object]:
    """Copied tracebacks and records of exceptions that are in memory; both tell their lies well."""
    ours = (ExceptionInfo, Traceback)
    return [found for found in gc.get_objects() if type(found) in ours]


def executions() -> list[object]:
    return [found for found in gc.get_objects() if type(found) is Execution]


@pytest.mark.parametrize("policy", [Queue(), Reschedule()])
def test_no_record_of_its_way_stays_in_memory(desk: Desk, policy: Policy) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str) -> None: ...

    others = kept()  # of other tests; alive as long as they are in this list
    before = {id(found) for found in others}
    with lock("order:42", app=desk.app, timeout=0):
        charge.delay("42")
        gc.disable()
        try:
            desk.deliver()

            assert [found for found in kept() if id(found) not in before] == []
        finally:
            gc.enable()


def test_no_record_of_a_delivery_stays_in_memory(desk: Desk) -> None:
    @desk.locked("order:{order}", name="charge")
    def charge(order: str) -> None: ...

    others = executions()
    before = {id(found) for found in others}
    gc.disable()
    try:
        charge.delay("42")
        desk.deliver()

        assert [found for found in executions() if id(found) not in before] == []
    finally:
        gc.enable()


@pytest.mark.parametrize("policy", [Queue(), Reschedule()])
def test_what_the_main_process_is_told_of_it_is_short(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, policy: Policy
) -> None:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str) -> None: ...

    monkeypatch.setattr(trace, "ExceptionInfo", ExceptionInfo)  # as where no worker was started
    told: list[ExceptionInfo] = []
    monkeypatch.setattr(
        LockedRequest, "on_failure", lambda self, record, **options: told.append(record)
    )
    charge.delay("42")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()

    (record,) = told
    frames = [frame.f_code.co_name for frame, _ in walk_tb(record.tb)]
    assert frames == ["trace_task", "__call__", "_call", "take"]
