"""What decides between turns, in the host's own process."""
