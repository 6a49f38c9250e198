"""Checkpoints that any number of ranks can write and any other number can read."""

from ds_core.checkpoint.asynchronous import AsyncSaver
from ds_core.checkpoint.directory import tags
from ds_core.checkpoint.load import Checkpoint, open_checkpoint
from ds_core.checkpoint.manifest import Manifest
from ds_core.checkpoint.ranks import GroupRanks, Ranks, SoloRank
from ds_core.checkpoint.reader import CheckpointReader
from ds_core.checkpoint.store import save

__all__ = [
    "AsyncSaver",
    "Checkpoint",
    "CheckpointReader",
    "GroupRanks",
    "Manifest",
    "Ranks",
    "SoloRank",
    "open_checkpoint",
    "save",
    "tags",
]
