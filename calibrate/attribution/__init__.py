"""Explains the peak of a recorded job by its prediction, allocation by allocation.

    attribution = attribute(recorded(snapshot), predicted(run))
    attribution.at_peak().items              # buffers that differ between the two at the measured peak
    attribution.extras()                     # allocations that only the device made, for the fit

Known limitations:

- Only requested bytes are compared. Block sizes, segments and fragmentation are the simulated allocator's part.
- Only the longest memory history of a snapshot is read, and it must be one of ``peakcast measure --snapshot``, from
  the start of the job.
- Allocations are aligned by order and size within one moment of one step. A buffer that moved to another moment
  appears as one that never came and one that only the device made.
- Stretches of more than 2,048 unmatched allocations are aligned block by block, not as a whole.
"""

from calibrate.attribution.allocations import JobAllocations, from_run, from_snapshot
from calibrate.attribution.attribution import Attribution, Extra, Lifetime, Outcome, Row, attribute
from calibrate.attribution.peak import AtPeak, Item

__all__ = ["AtPeak", "Attribution", "Extra", "Item", "Lifetime", "Outcome", "Row", "JobAllocations", "attribute",
           "from_run", "from_snapshot"]
