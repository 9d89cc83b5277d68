"""What the server offers over gRPC."""
