"""What only a device tells, asked of it directly: memory that libraries take, and workspaces of single operators."""
