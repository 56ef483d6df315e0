"""What each endpoint does, one file for each noun."""
