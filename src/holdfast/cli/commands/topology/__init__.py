"""Queues, groups and schedules as a file: `holdfast apply` and `holdfast export`."""
