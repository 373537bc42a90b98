"""The limit on the GPU memory that PyTorch may take from a real GPU."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from calibrate.job.job import fraction
from tests.calibrate.emulator.test_emulator import run_job
from tests.calibrate.small_jobs import needs_emulator

MIB = 1 << 20


@given(st.data())
def test_pytorch_gets_to_the_limit_and_less_than_a_kilobyte_beyond(data):
    total = data.draw(st.integers(1 << 30, 1 << 40))
    limit = data.draw(st.integers(1, total))
    share = fraction(limit, total)
    assert share <= 1 and limit <= int(share * total) < limit + 1024


@needs_emulator
def test_a_job_may_take_its_limit_and_no_page_more():
    found = run_job(f'''
        from calibrate.job.job import fraction
        total = torch.cuda.get_device_properties(0).total_memory
        outcomes = []
        for limit in range(22 * {MIB}, 2000 * {MIB}, 98 * {MIB}):
            torch.cuda.set_per_process_memory_fraction(fraction(limit, total))
            for more in (0, 2 * {MIB}):
                try:
                    torch.cuda.empty_cache()
                    torch.empty(limit + more, dtype=torch.uint8, device="cuda")
                    outcomes.append(True)
                except torch.OutOfMemoryError:
                    outcomes.append(False)
        answer({{"outcomes": outcomes}})
    ''')
    assert found["outcomes"] == [True, False] * 21
