"""A delivery from its key to its end: taken, run, put off or parked, and released after its result.

It runs where bodies run: in a child of the pool, or in the worker's process with threads, greenlets
and ``solo``; and in the caller's, for a direct call.
"""
