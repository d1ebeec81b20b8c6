"""The stores. Each commits the same rules atomically, and issues the fencing tokens.

They run in whatever process uses a lock. ``base`` is what a store has to be; ``subprocess`` is the
process that speaks for one whose driver survives no fork.
"""
