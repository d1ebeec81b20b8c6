"""Imported by a worker: its history is written when a process ends, and hardly before."""

from celery_dlock.monitoring.history import HistorySink

HistorySink.gather = 3600.0
HistorySink.exit_timeout = 60.0  # a slow machine may take its time
