"""Reads records of other jobs, such as the user's own trainings, as held-out jobs of a campaign.

They change the width of the intervals; no coefficient is fitted to them.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from calibrate.campaign.design import Job
from calibrate.campaign.rows import Row
from calibrate.records import record as records
from calibrate.records.record import Record
from predictor.common.errors import InputError
from predictor.common.suggestions import file_name
from predictor.workload.workload import Workload

GROUP = "given records"
NOT_OF_THE_JOB = ("gpu", "capacity_bytes", "profile", "rank")
"""Keys that say where the job ran."""


def read(paths: Sequence[str | os.PathLike[str]]) -> list[Row]:
    """A row for each file.

    Raises:
        InputError: a file is no record, or its job ran out of memory, was not predicted, or had batches of several
            shapes, or its model is code.
    """
    return [row_of(records.read(path), file_name(path)) for path in paths]


def row_of(record: Record, name: str) -> Row:
    """The row of a record. ``name`` is the name of its file, for messages."""
    if record.job.out_of_memory is not None:
        raise InputError(f"{name}: the job ran out of memory, so its peaks are not known: leave it out")
    if record.predicted is None or not record.job.moments:
        raise InputError(f"{name}: it was not predicted ({record.not_predicted or 'nothing was measured'}): leave it "
                         "out")
    try:
        record.check_model()
        record.check_shapes()
    except InputError as error:
        raise InputError(f"{name}: {error}: leave it out") from None
    workload = Workload.from_mapping(dict(record.workload), name)
    job = Job({key: value for key, value in workload.resolved().items() if key not in NOT_OF_THE_JOB}
              | {"rank": record.rank}, "holdout", GROUP)
    return Row(job.id, job.role, job.group, job.keys, record)
