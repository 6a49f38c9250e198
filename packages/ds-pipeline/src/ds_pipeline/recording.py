"""What a pass really did when: spans as in the simulator, from clocks of real runs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path

import torch

from ds_core.comm import Communicator
from ds_pipeline.instructions import BufferOpInstruction
from ds_pipeline.simulate import Span, Timeline

FORMAT = "ds-pipeline recording 1"


class Recorder:
    """Notes when each computation of this stage ran; device work is waited for while it is on."""

    def __init__(self, stage: int) -> None:
        self.stage = stage
        self.spans: list[Span] = []
        self._device = torch.accelerator.is_available()

    @contextmanager
    def span(self, step: BufferOpInstruction) -> Iterator[None]:
        """Time what happens inside."""
        start = self._now()
        yield
        self.spans.append(
            Span(self.stage, step.name, step.buffer_id, step.chunk, start, self._now())
        )

    def collect(self, replica: Communicator, stages: int) -> Timeline:
        """The spans of all stages, from 0 on, and forget them; all ranks call this."""
        everyone: list[list[Span]] = replica.all_gather_object(self.spans)
        self.spans = []
        spans = [span for found in everyone for span in found]
        if not spans:
            return Timeline([], stages, unit="s")
        origin = min(span.start for span in spans)
        moved = [
            Span(s.stage, s.kind, s.micro_batch, s.chunk, s.start - origin, s.stop - origin)
            for s in spans
        ]
        return Timeline(sorted(moved, key=lambda span: (span.stage, span.start)), stages, unit="s")

    def _now(self) -> float:
        if self._device:
            torch.accelerator.synchronize()
        return time.time()  # one clock for all processes of a host


def write_recording(timeline: Timeline, path: Path) -> None:
    """Keep a timeline as JSON, for `ds-pipeline draw --recorded`."""
    body = {
        "format": FORMAT,
        "stages": timeline.stages,
        "spans": [asdict(span) for span in timeline.spans],
    }
    path.write_text(json.dumps(body))


def read_recording(path: Path) -> Timeline:
    """Read what `write_recording` wrote.

    Raises:
        ValueError: another kind of file.
    """
    body = json.loads(path.read_text())
    if not isinstance(body, dict) or body.get("format") != FORMAT:
        raise ValueError(f"{path} is no '{FORMAT}'")
    return Timeline([Span(**span) for span in body["spans"]], body["stages"], unit="s")
