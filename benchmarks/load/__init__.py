"""What benchmarks of a running server share: the server, connections to it, and the loop that drives them."""
