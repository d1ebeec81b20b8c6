"""The tables, for Django; the same statements as everywhere."""
