"""Renders predictions as text, tables and pictures. Only this package converts bytes to GiB."""
