"""What listens to the events of locks; nothing that works with locks imports it."""
