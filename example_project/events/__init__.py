"""Several workers apply the events of orders, each once, one order at a time, in their order.

The work is ``app``, ``tasks`` (read it first), ``orders`` and ``relay``. The demo is ``demo``,
``acts``, ``stage``, ``audit`` and ``display``; the work knows none of it.
"""
