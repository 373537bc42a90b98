"""Names of regimes, which are part of the keys and hashes of formulas."""

from __future__ import annotations

import pytest

from predictor.events.regimes import Amount, Exactly, ForEachSample, Regime, Rows


@pytest.mark.parametrize("names, regime", [
    (("many", "1", "whole"), Regime(Amount.MANY, Amount.ONE, Rows.WHOLE)),
    (("1", "none", "padded>4096"), Regime(Amount.ONE, Amount.NONE, Rows.PADDED, window=4096)),
    (("=2", "=0", "whole>128"), Regime(Exactly(2), Exactly(0), Rows.WHOLE, window=128)),
    (("=1", "=4", "=50"), Regime(Exactly(1), Exactly(4), Exactly(50))),
    (("many", "x2", "=50"), Regime(Amount.MANY, ForEachSample(2), Exactly(50))),
    (("=3", "=3", "none"), Regime(Exactly(3), Exactly(3), Rows.NONE)),
])
def test_a_regime_is_written_as_three_names_and_read_from_them(names, regime):
    assert regime.names() == names
    assert Regime.parse(names) == regime
