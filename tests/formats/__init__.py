"""Data directories as older versions wrote them, and the tests that open them."""
