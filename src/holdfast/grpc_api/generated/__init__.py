"""What protoc makes of `proto/holdfast/v1/queue.proto`: `make proto` writes it."""
