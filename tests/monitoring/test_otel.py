"""Spans and metrics of OpenTelemetry, of messages that went through a worker's hands."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import metrics, trace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from celery_dlock import LockedTask, lock
from celery_dlock.core.events import (
    Contended,
    Lost,
    Rescheduled,
    Revoked,
    StaleRejected,
    Subject,
    TimedOut,
    Unavailable,
)
from celery_dlock.monitoring.otel import OpenTelemetrySink, Spans
from celery_dlock.runtime import forget
from tests.monitoring.happenings import (
    HOLDER,
    KEY,
    TASK_ID,
    about,
    acquired,
    one_of_each,
    released,
)
from tests.services.desk import Desk, open_desk
from tests.workers.conftest import MakeLab

_exporter = InMemorySpanExporter()
_reader = InMemoryMetricReader()


@pytest.fixture(scope="session", autouse=True)
def _sdk() -> None:
    """The providers of a process are set once."""
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(_exporter))
    trace.set_tracer_provider(provider)
    metrics.set_meter_provider(MeterProvider([_reader]))


@pytest.fixture(autouse=True)
def _none_yet() -> None:
    _exporter.clear()


@pytest.fixture
def told() -> Spans:
    """Makes spans of the events that it is told."""
    return Spans(trace.get_tracer("test"))


@pytest.fixture
def desk() -> Iterator[Desk]:
    with open_desk(dlock_sinks=["opentelemetry"]) as made:
        yield made
        forget(made.app)


def locked(desk: Desk, policy: str) -> LockedTask:
    @desk.locked("order:{order}", name="charge", on_contention=policy)
    def charge(order: str) -> None:
        pass

    return charge


def spans(task: str = "charge") -> dict[str, ReadableSpan]:
    """Those of one task so far; no name is there twice."""
    found = [s for s in _exporter.get_finished_spans() if _about(s)["celery.task_name"] == task]
    assert len({span.name for span in found}) == len(found)
    return {span.name: span for span in found}


def _about(span: ReadableSpan) -> dict[str, Any]:
    return {"celery.task_name": None, **(span.attributes or {})}


def _id(span: ReadableSpan) -> int:
    assert span.context is not None
    return int(span.context.span_id)


def _traces(found: dict[str, ReadableSpan]) -> set[int]:
    return {span.context.trace_id for span in found.values() if span.context}


def test_a_lock_that_is_taken_at_once_is_one_span(desk: Desk) -> None:
    sent = locked(desk, "reschedule").delay("42")
    desk.deliver()

    (hold,) = spans().values()
    assert (hold.name, hold.parent, hold.links) == ("dlock hold", None, ())
    assert _about(hold) == {
        "celery.task_name": "charge",
        "messaging.message.id": sent.id,
        "dlock.template": "order:{order}",
        "dlock.keys": ("order:42",),
        "dlock.fencing_tokens": (1,),
        "dlock.attempt": 0,
        "dlock.outcome": "done",
    }


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
def test_all_deliveries_of_a_task_are_one_trace(desk: Desk, policy: str) -> None:
    locked(desk, policy).delay("42")
    with lock("order:42", app=desk.app, timeout=0):
        desk.deliver()
    desk.deliver()

    found = spans()
    ask, wait, hold = (found[f"dlock {what}"] for what in ("ask", "wait", "hold"))
    assert len(_traces(found)) == 1
    assert ask.parent is None
    assert [s.parent and s.parent.span_id for s in (wait, hold)] == [_id(ask), _id(ask)]
    assert wait.end_time == hold.start_time, "waited until it was held"
    assert (wait.start_time or 0) < (wait.end_time or 0)
    assert _about(wait)["dlock.attempt"] == _about(hold)["dlock.attempt"] == 1


@pytest.mark.parametrize("policy", ["reschedule", "queue"])
def test_a_wait_is_linked_to_the_run_that_began_it(desk: Desk, policy: str) -> None:
    tracer = trace.get_tracer("runs")
    locked(desk, policy).delay("42")
    with (
        lock("order:42", app=desk.app, timeout=0),
        tracer.start_as_current_span("first") as first,
    ):
        desk.deliver()
    with tracer.start_as_current_span("second") as second:
        desk.deliver()

    found = spans()
    assert found.keys() == {"dlock wait", "dlock hold"}
    for span in found.values():
        assert span.parent
        assert span.parent.span_id == second.get_span_context().span_id
    (link,) = found["dlock wait"].links
    assert link.context.span_id == first.get_span_context().span_id
    assert link.context.trace_id == first.get_span_context().trace_id


def test_who_waits_in_its_slot_has_a_span_for_that(told: Spans) -> None:
    subject = about()

    told.tell(Contended(subject, KEY, HOLDER, 0, 0.0))
    told.tell(acquired(subject))
    told.tell(released(subject))

    wait, hold = (spans()[f"dlock {what}"] for what in ("wait", "hold"))
    assert hold.parent
    assert hold.parent.span_id == _id(wait)


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Lost(about(), KEY, "it has lapsed"), "it has lapsed"),
        (Lost(about(), KEY, "replaced by newer", "newer"), None),
        (Unavailable(about(), "no answer"), "no answer"),
        (StaleRejected(about(), KEY, 7), f"stale write of {KEY}"),
        (released(about()), None),
    ],
    ids=["lost", "replaced", "unavailable", "refused", "released"],
)
def test_a_hold_says_how_it_ended(told: Spans, ending: Any, status: str | None) -> None:
    told.tell(acquired(about()))
    told.tell(ending)
    told.tell(released(about()))

    assert spans()["dlock hold"].status.description == status


def test_a_wait_that_is_given_up_has_a_span(told: Spans) -> None:
    told.tell(TimedOut(about(), KEY, 3.0))

    wait = spans()["dlock wait"]
    assert wait.end_time
    assert wait.start_time
    assert wait.end_time - wait.start_time == 3_000_000_000
    assert not wait.status.is_ok


def test_a_wait_that_is_revoked_began_when_its_message_was_sent_away(told: Spans) -> None:
    carried = told.carry(about())
    told.tell(Rescheduled(about(), "held", 1.0))

    told.tell(Revoked(Subject(TASK_ID, "charge", "order:{order_id}", carried), KEY))

    wait = spans()["dlock wait"]
    assert wait.start_time == int(carried["dlock.since"])
    assert len(_traces(spans())) == 1


def test_a_trace_that_is_not_sampled_is_not_sampled_on_the_next_host_either(told: Spans) -> None:
    there = Spans(TracerProvider(sampler=ALWAYS_OFF).get_tracer("test"))

    carried = there.carry(about())
    subject = Subject(TASK_ID, "charge", "order:{order_id}", carried)
    told.tell(acquired(subject, waited=1.0))
    told.tell(released(subject))

    assert not int(carried["traceparent"][-2:], 16) & 1, "the flag of what is sampled"
    assert spans() == {}


def test_without_a_provider_nothing_is_made_and_nothing_fails() -> None:
    told = Spans(trace.NoOpTracer())

    carried = told.carry(about())
    for event in one_of_each(about()):
        told.tell(event)

    assert "traceparent" not in carried


def test_metrics_are_recorded_with_their_labels_and_no_key() -> None:
    sink = OpenTelemetrySink()
    for event in one_of_each(about("metered")):
        sink(event)

    data = _reader.get_metrics_data()
    assert data is not None
    found = {m.name: m for m in data.resource_metrics[0].scope_metrics[0].metrics}
    took = next(
        p for p in found["dlock_acquisition_seconds"].data.data_points
        if (p.attributes or {})["task"] == "metered"
    )  # fmt: skip
    assert took.attributes == {"task": "metered", "template": "order:{order_id}"}
    assert (took.sum, took.explicit_bounds[0]) == (0.004, 0.001)  # type: ignore[union-attr]
    assert "dlock_timed_out" in found
    text = data.to_json()
    assert not [secret for secret in (KEY, TASK_ID, HOLDER) if secret in text]


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["reschedule", "queue"])
def test_over_the_processes_of_a_worker_it_is_one_trace(make_lab: MakeLab, policy: str) -> None:
    lab = make_lab(
        celery={"dlock_sinks": ["tests.monitoring.traced:Traced"]}, lock={"policy": policy}
    )
    apply = lab.app.tasks["apply"]
    with lab.worker(concurrency=2):
        apply.delay("1", 1, hold="first")
        lab.journal.wait_for("start", number=1)
        second = apply.delay("1", 2)
        lab.journal.wait_for("span", name="dlock ask")
        lab.go("first")
        lab.journal.wait_for("end", number=2)
        lab.journal.wait_for("span", 2, name="dlock hold")

    found = [
        entry
        for entry in lab.journal.read("span")
        if entry["attributes"]["messaging.message.id"] == second.id
    ]
    assert [entry["name"] for entry in found] == ["dlock ask", "dlock wait", "dlock hold"]
    assert len({entry["trace"] for entry in found}) == 1
    ask, wait, hold = found
    assert ask["parent"] is None
    assert wait["parent"] == hold["parent"] == ask["span"]
    assert wait["began"] < wait["ended"] == hold["began"]
    assert hold["attributes"]["dlock.keys"] == ["order:1"]
