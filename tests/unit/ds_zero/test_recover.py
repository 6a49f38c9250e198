"""Sizes and file splits of the recovery script."""

from __future__ import annotations

import pytest

from ds_zero.recover import RecoveryError, Weight, folder_of, size_in_bytes, split


@pytest.mark.parametrize(
    ("text", "expected"),
    [("5GB", 5 * 10**9), ("1KiB", 1024), ("7", 7), ("2 MB", 2 * 10**6), (None, None), (9, 9)],
)
def test_sizes(text, expected):
    assert size_in_bytes(text) == expected


def test_files_hold_whole_tensors_in_order():
    weights = [Weight(str(i), (n,), "float32", (("f", 0, n),)) for i, n in enumerate((3, 5, 1, 9))]
    assert [[w.name for w in file] for file in split(weights, 24)] == [["0"], ["1", "2"], ["3"]]


def test_a_missing_checkpoint_says_what_to_do(tmp_path):
    with pytest.raises(RecoveryError, match="--tag"):
        folder_of(tmp_path)
