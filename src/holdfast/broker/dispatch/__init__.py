"""Delivery of messages that become ready: to long polls and to push members."""
