"""The queues of one cell, over all their partitions: pure, synchronous, without clock or loop."""
