"""What other people measured on real GPUs: rows as data, their predictions, errors, and the table made of them.

``profiles/evidence/real_gpus`` has one JSON file a source, :mod:`~calibrate.evidence.sources` reads and checks them.
Predictions are kept apart from them (:mod:`~calibrate.evidence.predictions`), because a row's reconstruction must be
committed before its prediction is made. ``scripts/check.py real_gpus`` makes the missing ones.
"""
