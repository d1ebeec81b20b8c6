"""The commands of ``celery dlock``."""
