"""Measurements as plain data, and their JSON files.

Known limitations:

- Only files of the current schema version are read.
- A record describes one rank and batches of one shape; ``check_shapes`` rejects a training with several shapes.
- The predicted peaks in a record are requested bytes only.
- In a record of the user's own training, a moment has a row only if it raised a counter above all earlier moments.
"""
