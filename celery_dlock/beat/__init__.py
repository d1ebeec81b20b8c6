"""Many beats, one leader, every tick once: ``celery -A shop beat -S dlock`` on every host.

It runs in beat's process.
"""
