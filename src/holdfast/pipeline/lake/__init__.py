"""The lake's tables and how they are kept."""
