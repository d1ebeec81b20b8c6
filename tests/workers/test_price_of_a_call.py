"""What a call costs that publishes nothing: no connection, no declaration, no subscription."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from kombu.transport.memory import Channel, Transport

from celery_dlock import BackendUnavailable, Debounce, Ordered, lock
from tests.services.desk import Desk
from tests.services.unique import without_answer

ORDERED = {"on_contention": Ordered()}
CALLS = pytest.mark.parametrize(
    ("options", "result"),
    [
        pytest.param({"unique": "done"}, True, id="a duplicate"),
        pytest.param({"unique": Debounce(10, 25)}, True, id="debounced"),
        pytest.param(ORDERED, False, id="parked"),
    ],
)


@pytest.fixture
def spent(desk: Desk) -> Counter[str]:
    """How often something was asked of the broker, or of the result backend."""
    counter = Counter[str]()

    def count(owner: Any, method: str) -> None:
        real = getattr(owner, method)

        def counted(*args: Any, **options: Any) -> Any:
            counter[method] += 1
            return real(*args, **options)

        desk.patch.setattr(owner, method, counted)

    count(Transport, "establish_connection")
    count(Channel, "queue_declare")
    count(Channel, "basic_publish")
    count(desk.app.backend, "on_task_call")
    return counter


@CALLS
def test_who_publishes_nothing_asks_the_broker_and_the_result_backend_for_nothing(
    desk: Desk, spent: Counter[str], options: dict[str, Any], result: Any
) -> None:
    @desk.locked("doc:{doc}", name="save", **options)
    def save(text: str, doc: int = 7) -> str:
        return text

    with lock("doc:7", app=desk.app, timeout=0):
        save.delay("a")
        spent.clear()
        for _ in range(20):
            assert save.delay("a").is_duplicate is result
        assert spent == {}
        if options is ORDERED:
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(desk.store, "enter", without_answer())
                with pytest.raises(BackendUnavailable):
                    save.delay("a")
            assert spent == {}
        published = save.apply_async(("b", 8), countdown=60)

        assert spent == {"basic_publish": 1, "on_task_call": 1}
    assert not published.ignored


@pytest.mark.parametrize("ignored", [True, False])
def test_what_waits_says_of_its_result_what_its_caller_said(desk: Desk, ignored: bool) -> None:
    @desk.locked("doc:{doc}", name="save", on_contention=Ordered())
    def save(text: str, doc: int = 7) -> str:
        return text

    call = save.apply_async(("a",), ignore_result=ignored)
    message = desk.receive()

    assert (message.headers["ignore_result"], call.ignored) == (ignored, ignored)
