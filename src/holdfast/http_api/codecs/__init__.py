"""Bodies of requests and responses: JSON, Arrow, multipart, raw payloads."""
