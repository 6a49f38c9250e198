"""Token-budget batches with their learning rate, curricula, indexed datasets, token dropping."""

from ds_data.analyzer import DataAnalyzer
from ds_data.analyzer_distributed import DistributedDataAnalyzer
from ds_data.batch_lr import VariableBatchLR, scale_lr
from ds_data.curriculum import CurriculumScheduler
from ds_data.errors import DataError, FormatError, MissingPart, RuleError
from ds_data.indexed import MMapIndexedDataset
from ds_data.indexed_builder import MMapIndexedDatasetBuilder
from ds_data.indexed_format import best_dtype
from ds_data.layer_drop import ProgressiveLayerDrop, keep_probability
from ds_data.lengths import sample_lengths
from ds_data.loader import LoaderOptions, VariableBatchLoader
from ds_data.metric_map import Metric
from ds_data.packed import PackedBatch, pack_sequences
from ds_data.packing import BatchPlan, BatchRules, plan_batches
from ds_data.progress import progress_bar
from ds_data.random_ltd import (
    LTDRules,
    RandomLayerTokenDrop,
    RandomLTDScheduler,
    attach_random_ltd,
    convert_to_random_ltd,
    remove_random_ltd_state_dict,
    save_without_random_ltd,
)
from ds_data.sampler import CurriculumLoader, CurriculumRule, CurriculumSampler, Shares
from ds_data.tokens import TokenBudget, TokenDecayLR, warmup_steps
from ds_data.variable_batch import (
    batch_by_seqlens,
    get_dataloader_and_lr_scheduler_for_variable_batch_size,
    variable_batches,
)

__all__ = [
    "BatchPlan",
    "BatchRules",
    "CurriculumLoader",
    "CurriculumRule",
    "CurriculumSampler",
    "CurriculumScheduler",
    "DataAnalyzer",
    "DataError",
    "DistributedDataAnalyzer",
    "FormatError",
    "LTDRules",
    "LoaderOptions",
    "MMapIndexedDataset",
    "MMapIndexedDatasetBuilder",
    "Metric",
    "MissingPart",
    "PackedBatch",
    "ProgressiveLayerDrop",
    "RandomLTDScheduler",
    "RandomLayerTokenDrop",
    "RuleError",
    "Shares",
    "TokenBudget",
    "TokenDecayLR",
    "VariableBatchLR",
    "VariableBatchLoader",
    "attach_random_ltd",
    "batch_by_seqlens",
    "best_dtype",
    "convert_to_random_ltd",
    "get_dataloader_and_lr_scheduler_for_variable_batch_size",
    "keep_probability",
    "pack_sequences",
    "plan_batches",
    "progress_bar",
    "remove_random_ltd_state_dict",
    "sample_lengths",
    "save_without_random_ltd",
    "scale_lr",
    "variable_batches",
    "warmup_steps",
]

__version__ = "0.1.0"
