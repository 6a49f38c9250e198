"""Pipelines under their old import paths."""

from __future__ import annotations

import importlib

import pytest

import deepspeed
from deepspeed.legacy.pipeline import NAMES
from deepspeed.runtime.pipe import schedule


@pytest.mark.parametrize("module", [name for name in NAMES if name != "deepspeed"])
def test_every_name_of_the_table_is_there(module):
    found = importlib.import_module(module)
    for name, target in NAMES[module].items():
        if target.startswith("!"):
            with pytest.raises(Exception, match=r"torch\.distributed"):
                getattr(found, name)()
        else:
            assert getattr(found, name).__name__


def test_the_top_level_has_module_and_engine():
    assert issubclass(deepspeed.PipelineEngine, deepspeed.DeepSpeedEngine)
    assert deepspeed.PipelineModule.__name__ == "PipelineModule"


def test_a_training_schedule_yields_one_computation_a_step_and_reuses_buffers():
    made = schedule.TrainSchedule(micro_batches=6, stages=3, stage_id=0)
    steps = list(made)
    computed = (schedule.ForwardPass, schedule.BackwardPass)
    for commands in steps:
        assert sum(isinstance(command, computed) for command in commands) == 1
    buffers = {c.buffer_id for s in steps for c in s if isinstance(c, schedule.BufferOpInstruction)}
    assert buffers == set(range(made.num_pipe_buffers())) == {0, 1, 2}
    assert isinstance(steps[-1][-1], schedule.OptimizerStep)
    assert (made.is_first_stage, made.is_last_stage, made.num_stages) == (True, False, 3)


def test_inference_and_data_parallel_schedules():
    kinds = [c.name for s in schedule.InferenceSchedule(1, 2, 1) for c in s]
    assert kinds == ["RecvActivation", "LoadMicroBatch", "ForwardPass"]
    last = list(schedule.DataParallelSchedule(2, 1, 0))[-1]
    assert [c.name for c in last][-2:] == ["ReduceGrads", "OptimizerStep"]


def test_partitions_under_their_old_names():
    from deepspeed.runtime.utils import partition_balanced, partition_uniform

    assert partition_balanced(weights=[1, 1, 1, 1, 1], parts=4) == [0, 1, 2, 3, 5]
    assert partition_uniform(5, 4) == [0, 2, 3, 4, 5]
