"""Which strategy a section gets."""

from __future__ import annotations

import pytest

from ds_core.errors import ConfigError
from ds_zero.sections import ZeroSection
from support.zero_models import Reference, engine_of


@pytest.mark.parametrize("stage", [0, 5])
def test_a_stage_that_is_none_of_zero_is_refused(stage: int) -> None:
    with pytest.raises(ConfigError, match=f"stage is {stage}; choose 1, 2 or 3"):
        engine_of(ZeroSection(stage=stage), Reference())  # type: ignore[arg-type]
