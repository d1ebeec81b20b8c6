"""The project. Its Celery application is loaded with it, as Celery's documentation advises."""

from django_shop.celery import app as celery_app

__all__ = ["celery_app"]
