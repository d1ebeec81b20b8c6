"""The stores, one a file; each commits the same rules."""
