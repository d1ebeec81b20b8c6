"""The web face of the shop."""

from django.db import connection, transaction
from django.http import HttpRequest, JsonResponse
from django.shortcuts import get_object_or_404
from django.views.decorators.http import require_POST

from celery_dlock import BackendUnavailable, LockContended, fencing, lock
from orders.models import Order
from orders.tasks import charge


@require_POST
def create(request: HttpRequest) -> JsonResponse:
    with transaction.atomic():
        order = Order.objects.create(amount=int(request.GET["amount"]))
        charge.delay_on_commit(order.pk)  # a rollback publishes nothing
    return show(request, order.pk)


def show(request: HttpRequest, order_id: int) -> JsonResponse:
    order = get_object_or_404(Order, pk=order_id)
    return JsonResponse({"id": order.pk, "amount": order.amount, "paid": order.paid})


@require_POST
def charge_again(request: HttpRequest, order_id: int) -> JsonResponse:
    """The customer presses the button twice: the second task waits for the first."""
    return JsonResponse({"task": charge.delay(order_id).id}, status=202)


@require_POST
def refund(request: HttpRequest, order_id: int) -> JsonResponse:
    """Takes the lock of the order's tasks, or answers at once who has it."""
    try:
        with lock(f"order:{order_id}", timeout=0), transaction.atomic():
            fencing.admit(connection)
            Order.objects.filter(pk=order_id).update(paid=0)
    except LockContended as taken:
        return JsonResponse({"error": str(taken), "holder": taken.holder}, status=409)
    except BackendUnavailable:  # tasks need no such thing: they are rescheduled
        return JsonResponse({"error": "try again later"}, status=503)
    return show(request, order_id)
