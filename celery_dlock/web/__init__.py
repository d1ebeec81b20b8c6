"""The page of ``celery dlock web``, which another site may mount: who is let in, and what is shown.

What it looks up or does is in :mod:`celery_dlock.ops`.
"""
