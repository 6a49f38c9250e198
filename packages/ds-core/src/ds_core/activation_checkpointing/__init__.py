"""Activation checkpointing: trade a second forward pass for memory."""

from ds_core.activation_checkpointing.checkpoint import ActivationCheckpointer, CheckpointOptions
from ds_core.activation_checkpointing.rng import MODEL_PARALLEL, RNGTracker

__all__ = ["MODEL_PARALLEL", "ActivationCheckpointer", "CheckpointOptions", "RNGTracker"]
