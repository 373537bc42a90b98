"""What saving checkpoints between the steps allocates on the emulated GPU, in Hugging Face's Trainer."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from calibrate.dryrun.dryrun import Streams, dryrun
from calibrate.emulator import H100
from tests.calibrate.small_jobs import needs_emulator
from tests.calibrate.trainer import ZERO2_CONFIG, script

pytestmark = needs_emulator
STEPS = 3
COUNTED = "import json\nstats = torch.cuda.memory_stats()\njson.dump([stats[f'{name}.all.allocated'] for name in " \
          "('allocation', 'allocated_bytes', 'segment')], open(PATH, 'w'))\n"


@pytest.mark.parametrize(("arguments", "rank", "blocks"), [
    ({}, None, 0), ({"dtype": "float32", "bf16": True}, None, 0),
    ({"deepspeed": ZERO2_CONFIG, "bf16": True}, 0, 17), ({"deepspeed": ZERO2_CONFIG, "bf16": True}, 7, 17),
], ids=["torch", "autocast", "zero2-first", "zero2-last"])
def test_a_checkpoint_takes_no_more_than_some_scalars(tmp_path, arguments, rank, blocks):
    """No segment more, and blocks of 512 bytes only."""
    def counted(**saving):
        directory = tmp_path / saving["save_strategy"]
        directory.mkdir()
        path, result = script(directory, max_steps=STEPS, **arguments, **saving), directory / "counts.json"
        path.write_text(path.read_text() + COUNTED.replace("PATH", repr(str(result))))
        found = dryrun([sys.executable, str(path)], H100, world_size=None if rank is None else 8, rank=rank or 0,
                       streams=Streams(subprocess.DEVNULL, subprocess.DEVNULL))
        assert found.exit_code == 0
        return json.loads(result.read_text())

    plain, saved = counted(save_strategy="no"), counted(save_strategy="steps", save_steps=1)
    assert (tmp_path / "steps" / f"checkpoint-{STEPS}").is_dir()
    more = STEPS * blocks
    assert [later - before for before, later in zip(plain, saved)] == [more, more * 512, 0]
