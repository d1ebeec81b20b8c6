"""The shop's tasks beside those without a fence and those without a lock, under the same faults.

``scenes`` is what happens to them, ``figures`` what came of it. ``gates`` has tasks stand still in
the middle, so that nothing depends on who is faster.
"""
