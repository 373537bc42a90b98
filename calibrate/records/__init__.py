"""What was measured, as plain data."""
