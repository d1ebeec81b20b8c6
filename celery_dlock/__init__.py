"""Per-resource locks for Celery tasks."""
