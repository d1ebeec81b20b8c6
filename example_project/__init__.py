"""A small shop: several workers apply the events of its orders, each once, one order at a time.

The shop is ``app``, ``tasks`` (read it first), ``orders``, ``relay`` and ``broker``. The demo is
``demo``, ``acts``, ``stage``, ``workers``, ``audit`` and ``display``; the shop knows none of it.
"""
