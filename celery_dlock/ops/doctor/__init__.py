"""What of an application's configuration breaks a promise, and the setting that fixes it.

A check yields findings and changes nothing. Those of a store or a broker are imported when they are
needed, for they need its driver; which they are says :data:`celery_dlock.registry.BACKENDS`.
"""
