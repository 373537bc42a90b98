"""The prediction and everything that it returns."""
