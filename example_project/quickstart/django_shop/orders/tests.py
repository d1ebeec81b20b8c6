"""``python manage.py test``: no server is needed, locks and messages stay in memory."""

from unittest.mock import patch

from django.contrib.auth.models import User
from django.test import TestCase

from celery_dlock.testing import held_by_another, inline_worker, stale_holder
from django_shop.celery import app
from orders.models import Order
from orders.tasks import charge


class Orders(TestCase):
    def setUp(self) -> None:
        self.worker = self.enterContext(inline_worker(app))
        self.provider = self.enterContext(patch("orders.tasks.ask_provider"))
        with self.captureOnCommitCallbacks(execute=True):
            self.order = self.client.post("/orders?amount=10").json()["id"]

    def test_an_order_is_charged_once(self) -> None:
        self.client.post(f"/orders/{self.order}/charge")
        assert self.worker.deliver() == self.worker.deliver() == "succeeded"
        assert Order.objects.get(pk=self.order).paid == 10
        first, second = self.provider.call_args_list
        assert first == second  # by its idempotency key the provider charges once

    def test_an_order_that_is_taken_is_not_refunded(self) -> None:
        with held_by_another(f"order:{self.order}", app=app):
            assert self.worker.deliver() == "parked"
            assert self.client.post(f"/orders/{self.order}/refund").status_code == 409

    def test_a_worker_that_was_paused_charges_nothing(self) -> None:
        late = stale_holder(charge, self.order)  # took the lock, and was paused past its lease
        charge(self.order)  # the next one takes it, and writes
        late.wakes_up()  # goes on as if nothing had happened: must be refused
        self.provider.assert_called_once()

    def test_an_order_that_is_saved_in_the_admin_is_charged(self) -> None:
        self.client.force_login(User.objects.create_superuser("operator"))
        with self.captureOnCommitCallbacks(execute=True):
            self.client.post("/admin/orders/order/add/", {"amount": 20})
        assert self.worker.deliver() == self.worker.deliver() == "succeeded"
        assert Order.objects.get(amount=20).paid == 20
