"""Stores of rows in SQL, which run the rules in a transaction."""
