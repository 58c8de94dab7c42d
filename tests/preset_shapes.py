"""Shapes that the tests of presets share: each row of the table, and a small one of no model."""

import pytest

from multihead.presets import PRESETS, AttentionShape

ROWS = pytest.mark.parametrize("shape", PRESETS.values(), ids=PRESETS)
PLAIN = AttentionShape("plain", 3, 13, 6, 6, 5, None, "none", "this test")
FEW = 11  # tokens, fewer than any window of the table, more than those of the tests
