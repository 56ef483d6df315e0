"""Holdfast beside other servers: how they are started and spoken to, and the table of what is compared."""
