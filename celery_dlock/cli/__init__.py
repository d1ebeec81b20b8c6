"""The commands of ``celery dlock``: what is typed and printed, and nothing else.

What they look up or do is in :mod:`celery_dlock.ops`. One is imported when it is named.
"""
