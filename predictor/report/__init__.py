"""Predictions as text, tables and pictures. Bytes become GiB here and nowhere else."""
