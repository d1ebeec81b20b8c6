"""A message on its way: its envelope in the store, its headers, its claims, its broker, its waking.

It runs in every process of Celery, for each publishes what waits. It knows the stores and Celery's
messages, and nothing of who runs a task.
"""
