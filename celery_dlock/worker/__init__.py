"""What the worker's main process does: it sees every delivery, watches its children, and sweeps.

Nothing here is imported by the process of a publisher, or before a worker starts.
"""
