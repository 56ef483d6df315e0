"""From journal segments to tables."""
