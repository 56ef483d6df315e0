"""The table of endpoints and the API's description made from it."""
