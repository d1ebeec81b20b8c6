"""The tables of the store, for Django; the same statements as ``dlock init --sql`` prints."""
