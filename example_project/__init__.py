"""Locks and fences at work. Read ``shop/tasks.py`` first, then ``shop/careless.py``.

``shop`` is stock and payments behind a web face; ``compare`` has it work beside the same tasks
without lock and fence. ``events`` applies the events of orders in the order in which they were
published.

``quickstart`` has a small project for each of Django, Flask and FastAPI, which needs nothing of the
rest. ``settings``, ``broker``, ``workers``, ``journal`` and ``command`` are what the others run on.
"""
