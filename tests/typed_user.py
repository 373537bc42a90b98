"""What a user might write; mypy reads it (``tests/test_types.py``) and nothing runs it.

An ignored error that mypy does not find is an error itself, so each line below proves that mypy knows a public name.
"""

from predictor import Workload, predict

print(predict(Workload(model="llava-1.5-7b")).peak_allocated_bytes + 1)
print(predict(Workload(model="llava-1.5-7b")).peak_allocatd_bytes)  # type: ignore[attr-defined]
