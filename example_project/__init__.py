"""A small shop: several workers apply the events of its orders, each once, one order at a time."""
