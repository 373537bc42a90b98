"""What the user asked for, complete and checked."""
