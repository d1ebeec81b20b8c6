"""With celery-types the results of locked tasks have their types, too. Nobody runs it."""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from typing import assert_type

from celery import chain
from celery.canvas import Signature
from celery.result import AsyncResult, EagerResult

from tests.typing.shop import again, charge, nightly, transfer


def results() -> None:
    result: AsyncResult[str] = charge.delay(42, 10)
    assert_type(result.get(), str)
    assert_type(charge.delay(42, 10).is_duplicate, bool)
    assert_type(charge.apply_async((42,)).is_duplicate, bool)
    assert_type(charge.delay(42, 10).get(timeout=5), str)
    assert_type(charge.apply_async((42,), countdown=5).get(), str)
    assert_type(charge.apply((42,)), EagerResult[str])
    assert_type(charge.s(10), Signature[str])
    assert_type(charge.si(42).delay().get(), str)
    assert_type(transfer.delay("a", "b", amount=5).get(), int)
    assert_type(again.delay(42).get(), bool)
    chain(nightly.s("2026-11-24"), charge.s(10), again.si(42)).delay()
