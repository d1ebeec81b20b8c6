"""What of an application's configuration breaks a promise, and the setting that mends it."""
