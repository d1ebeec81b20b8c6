"""Celery lives on this floor, and nowhere below."""
