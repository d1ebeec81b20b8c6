"""The shop's data."""

from django.db import models


class Order(models.Model):
    amount = models.PositiveIntegerField()
    paid = models.PositiveIntegerField(default=0, editable=False)
