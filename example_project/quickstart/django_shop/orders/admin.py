"""Orders in Django's admin. An order that is saved there is charged when it is committed."""

from typing import Any

from django.contrib import admin
from django.http import HttpRequest

from orders.models import Order
from orders.tasks import charge


@admin.register(Order)
class OrderAdmin(admin.ModelAdmin):
    list_display = ("id", "amount", "paid")

    def save_model(self, request: HttpRequest, obj: Order, form: Any, change: bool) -> None:
        super().save_model(request, obj, form, change)
        charge.delay_on_commit(obj.pk)
