"""Imported by a worker: its history is written when a process ends, and hardly before."""

from celery_dlock.monitoring import history

history.EVERY = 3600.0
history.LAST_WORDS = 60.0  # a slow machine may take its time
