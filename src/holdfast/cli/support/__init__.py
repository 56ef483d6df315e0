"""What commands share: connection, options, output."""
