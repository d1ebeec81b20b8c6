"""Every code block of README and docs is run."""
