"""What the node looks at though nobody asks: its disk, its syncs, groups that nobody consumes, the size of the lake."""
