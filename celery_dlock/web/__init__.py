"""The page of ``celery dlock web``."""
