"""``pytest``: no server is needed, locks and messages stay in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from flask.testing import FlaskClient

from celery_dlock.testing import InlineWorker
from flask_shop import create_app, tasks
from flask_shop.models import create_tables


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """With which idempotency keys the payment provider is asked."""
    keys: list[str] = []

    def ask_provider(order_id: int, idempotency_key: str) -> None:
        keys.append(idempotency_key)

    monkeypatch.setattr(tasks, "ask_provider", ask_provider)
    return keys


@pytest.fixture
def app(tmp_path: Path, asked: list[str]) -> Iterator[Flask]:
    app = create_app({"DATABASE": f"sqlite:///{tmp_path}/shop.db"})
    with app.app_context():
        create_tables()
        yield app
    app.extensions["engine"].dispose()


@pytest.fixture
def worker(app: Flask, inline_worker: Callable[..., InlineWorker]) -> InlineWorker:
    return inline_worker(app.extensions["celery"])


@pytest.fixture
def client(app: Flask, worker: InlineWorker) -> FlaskClient:
    client = app.test_client()
    client.post("/orders?amount=10")
    return client


def test_an_order_is_charged_once(
    client: FlaskClient, worker: InlineWorker, asked: list[str]
) -> None:
    client.post("/orders/1/charge")
    assert worker.deliver() == worker.deliver() == "succeeded"
    first, second = asked
    assert first == second  # the provider charges once
    assert client.get("/orders/1").json == {"id": 1, "amount": 10, "paid": 10}


def test_an_order_that_is_taken_is_not_refunded(
    client: FlaskClient, worker: InlineWorker, held_by_another: Callable[..., Any]
) -> None:
    with held_by_another("order:1"):
        assert worker.deliver() == "parked"
        assert client.post("/orders/1/refund").status_code == 409


def test_a_worker_that_was_paused_charges_nothing(
    client: FlaskClient, stale_holder: Callable[..., Any], asked: list[str]
) -> None:
    late = stale_holder(tasks.charge, 1)  # took the lock, and was paused past its lease
    tasks.charge(1)  # the next one takes it, and writes
    late.wakes_up()  # goes on as if nothing had happened: must be refused
    assert len(asked) == 1
