"""What every step uses: errors, files, safe text, value types and GPUs."""
