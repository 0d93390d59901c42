"""What the store promises, over a real PostgreSQL."""
