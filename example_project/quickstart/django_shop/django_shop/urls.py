"""What the shop answers to."""

from django.contrib import admin
from django.urls import path

from orders import views

urlpatterns = [
    path("admin/", admin.site.urls),
    path("orders", views.create),
    path("orders/<int:order_id>", views.show),
    path("orders/<int:order_id>/charge", views.charge_again),
    path("orders/<int:order_id>/refund", views.refund),
]
