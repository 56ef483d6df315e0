"""What queues do, told once through the public client and true over every way to a broker and every store."""
