"""Other brokers' HTTP APIs, each a module with its `Routes`, spoken on the same port over the same node."""
