"""The parts of a node: each one area of its API."""
