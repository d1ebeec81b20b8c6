"""The web face answers at once and decides nothing; a worker does the rest."""

from __future__ import annotations

from typing import Any

import pytest
from flask.testing import FlaskClient

from tests.demo.shop.conftest import Shop


@pytest.fixture
def client(sqlite_shop: Shop) -> FlaskClient:
    client: FlaskClient = sqlite_shop.web.create_app(
        {"lamp": (4900, 1), "<b>": (100, 0)}
    ).test_client()
    return client


def test_an_order_is_accepted_and_can_be_looked_at(client: FlaskClient) -> None:
    answer = client.post("/orders", json={"sku": "lamp"})
    assert answer.status_code == 202
    assert client.get(answer.headers["Location"]).json == answer.json
    assert answer.json == {"id": 1, "sku": "lamp", "price": 4900, "state": "new"}
    assert client.get("/stock").json == {"<b>": 0, "lamp": 1}


@pytest.mark.parametrize("body", [{"sku": "moon"}, {"sku": 1}, {}, ["lamp"], "lamp", None])
def test_an_order_for_nothing_is_refused(client: FlaskClient, body: Any) -> None:
    assert client.post("/orders", json=body).status_code == 400
    assert client.get("/orders/1").status_code == 404


def test_an_order_that_has_no_item_cannot_be_called_off(client: FlaskClient) -> None:
    client.post("/orders", json={"sku": "lamp"})
    assert client.delete("/orders/1").status_code == 409
    assert client.delete("/orders/2").status_code == 404


def test_the_page_shows_all_and_trusts_nothing(client: FlaskClient) -> None:
    client.post("/orders", data={"sku": "<b>"})
    page = client.get("/").text
    assert "<td>1<td>&lt;b&gt;<td>new" in page
    assert "<b>" not in page
