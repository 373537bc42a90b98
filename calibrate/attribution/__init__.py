"""Explains a recorded job by its prediction, allocation by allocation.

    attribution = attribute(recorded(snapshot), predicted(run))
    attribution.at_peak().items              # what the two do not have in common there
    attribution.extras()                     # what only the device allocated, for the fit
"""

from calibrate.attribution.allocations import Side, predicted, recorded
from calibrate.attribution.attribution import Attribution, Extra, Lifetime, Outcome, Row, attribute
from calibrate.attribution.peak import AtPeak, Item

__all__ = ["AtPeak", "Attribution", "Extra", "Item", "Lifetime", "Outcome", "Row", "Side", "attribute", "predicted",
           "recorded"]
