"""Sessions, Java, and tasks for executors."""
