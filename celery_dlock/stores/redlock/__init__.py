"""The store on a majority of independent Redis servers: an instance of Redis' store for the queue,
and its nodes for exclusion.
"""
