"""A shop on Flask, SQLAlchemy and Celery that never sells or charges twice.

Read ``tasks`` first, then ``recovery`` and, for contrast, ``careless``: the same tasks as they are
often written, and ``unfenced``: those under a lock. ``models`` is the data, ``provider`` the
payment provider, ``web`` the web face.
"""
