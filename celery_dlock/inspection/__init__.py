"""What people ask about locks and do with them, for the commands and the page alike."""
