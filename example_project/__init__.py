"""Locks and fences at work. Read ``shop/tasks.py`` first, then ``shop/careless.py``.

``shop`` is stock and payments behind a web face; ``compare`` has it work beside the same tasks
without lock and fence. ``events`` applies the events of orders in the order in which they were
published. ``settings``, ``broker``, ``workers``, ``journal`` and ``command`` are what all run on.
"""
