"""Measures a workload: runs the reference training loop in a process of its own and reads its peaks.

Known limitations:

- A measurement runs three steps of peakcast's reference loop, not the user's own code.
- Nothing can be injected into a real GPU; ``capacity_bytes`` only limits what PyTorch may take of it.
- The comparison in a record is a prediction without a calibration profile.
- Only jobs on the emulated GPU with hidden output share imports (``warm_workers``).
"""
