"""What all fronts do with callers that are known: end their long requests, and check where they move dead letters."""
