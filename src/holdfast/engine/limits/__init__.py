"""What a queue gives out at most, and when it stops giving."""
