"""What listens to the events of locks: metrics, spans, a history, a stream.

It runs in every process that uses locks, in threads of its own where it has to wait. Nothing that
works with locks imports it.
"""
