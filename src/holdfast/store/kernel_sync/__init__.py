"""Syncs that the kernel does while this process works on, without a thread of ours."""
