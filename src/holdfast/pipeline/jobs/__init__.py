"""Questions to the lake and what is done with the answers."""
