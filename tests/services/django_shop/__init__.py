"""A Django project with one PostgreSQL, which ``SHOP`` names, and nothing else."""
