"""Jobs that query the lake, and jobs that fill queues from it."""
