"""For Django: the lock store in the PostgreSQL database of a project, and migrations of tables."""
