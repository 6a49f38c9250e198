"""Saving and loading under the signatures that programs know."""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from tqdm import tqdm

from deepspeed.compiled import uncompiled
from deepspeed.config import Config
from deepspeed.foreign_checkpoint import (
    copy_recovery_script,
    foreign_folder,
    load_foreign,
    make_executable,
)
from ds_core.checkpoint import AsyncSaver
from ds_core.checkpoint.ranks import together
from ds_core.contracts import LoadWhat
from ds_core.engine import Counters
from ds_core.errors import CheckpointError, ConfigError, RankMismatchError
from ds_core.groups import Groups
from ds_core.naming import ParameterNames, named_buffers
from ds_core.training_state import SaveOptions, load_engine, save_engine

logger = logging.getLogger(__name__)


class EngineCheckpoint:
    """The checkpoint methods of `DeepSpeedEngine`."""

    configuration: Config
    module: nn.Module
    strategy: Any  # an UpdateStrategy; typed loosely because mixins see only part of the engine
    groups: Groups
    basic_optimizer: Any
    counters: Counters
    zero_optimization: Callable[[], bool]
    require_open: Callable[[], None]
    gather: Callable[..., AbstractContextManager[None]]
    loaded_checkpoint_tag: str | None = None
    _saver: AsyncSaver | None = None

    def save_checkpoint(
        self,
        save_dir: str | os.PathLike[str],
        tag: str | None = None,
        client_state: Mapping[str, Any] | None = None,
        save_latest: bool = True,
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Write the whole training state to `save_dir/tag`; every rank calls this.

        Args:
            tag: name of the checkpoint; default `global_step<N>`.
            client_state: values of your own; numbers, text, containers, tensors, arrays. It is
                never pickled: what else is in it is refused by name.
            save_latest: let `load_checkpoint` without a tag find it.
            exclude_frozen_parameters: leave out weights that are not trained.

        Returns:
            True; every fault is an exception, on all ranks.
        """
        self.require_open()
        tag = self._agreed_tag(f"global_step{self.counters.steps}" if tag is None else str(tag))
        writer = self.configuration.section("checkpoint").writer
        start = time.perf_counter()
        with self._bar(f"saving {tag}") as bar:
            save_engine(
                self,  # type: ignore[arg-type]  # the mixin is part of an Engine
                save_dir,
                tag,
                client_state=client_state,
                options=SaveOptions(
                    save_latest=save_latest,
                    exclude_frozen=exclude_frozen_parameters,
                    saver=self._background_saver(),
                    progress=bar.update,
                    tensor_writer=_tensor_writer(writer),
                ),
            )
            if writer is not None and writer.show_statistics:
                seconds = time.perf_counter() - start
                logger.info("saved %s: %d bytes by this rank in %.2f s", tag, bar.n, seconds)
        if self.zero_optimization():
            with together(self.groups.world, f"putting zero_to_fp32.py into {save_dir}"):
                if self.groups.world.rank == 0:
                    self._copy_recovery_script(os.fspath(save_dir))
        return True

    def _copy_recovery_script(self, save_path: str) -> None:
        """Leave `zero_to_fp32.py` beside the checkpoints (programs replace this method)."""
        copy_recovery_script(Path(save_path))

    def _change_recovery_script_permissions(self, dst: str) -> None:
        make_executable(Path(dst))

    def load_checkpoint(
        self,
        load_dir: str | os.PathLike[str],
        tag: str | None = None,
        load_module_strict: bool = True,
        load_optimizer_states: bool = True,
        load_lr_scheduler_states: bool = True,
        load_module_only: bool = False,
        custom_load_fn: Callable[..., Any] | None = None,
    ) -> tuple[str | None, dict[str, Any] | None]:
        """Verify and load `load_dir/tag`, written at any stage and world size.

        Args:
            tag: which checkpoint; None for the one that `latest` names.
            load_module_strict: names must match exactly.
            load_optimizer_states: moments, parameter-group options and loss scale too.
            load_lr_scheduler_states: the schedule too.
            load_module_only: only weights and buffers; counters and schedules stay.

        Returns:
            (path, client state), or (None, None) if no tag was given and there is no `latest`.

        Raises:
            CheckpointError: missing or damaged files, or a checkpoint that does not fit.
        """
        if custom_load_fn is not None:
            raise ConfigError(
                "custom_load_fn is not supported; load_module_strict=False skips missing names, "
                "and engine.module can be edited inside zero.GatheredParameters"
            )
        self.require_open()
        tag = None if tag is None else str(tag)
        self.wait_for_checkpoint()
        everything = not load_module_only
        what = LoadWhat(
            weights=True,
            optimizer=everything and load_optimizer_states and self.basic_optimizer is not None,
            strict=load_module_strict,
        )
        rest = {"schedule": everything and load_lr_scheduler_states, "progress": everything}
        foreign = foreign_folder(Path(load_dir), tag)
        if foreign is not None:
            return str(foreign), load_foreign(self, foreign, what=what, **rest)
        if tag is None and not (Path(load_dir) / "latest").exists():
            if self.groups.world.rank == 0:
                why = "there is no file latest" if Path(load_dir).is_dir() else "it does not exist"
                logger.warning("nothing was loaded from the folder %s: %s", load_dir, why)
            return None, None
        with load_engine(
            self,  # type: ignore[arg-type]
            load_dir,
            tag,
            what=what,
            **rest,
        ) as checkpoint:
            self.loaded_checkpoint_tag = checkpoint.tag
            return str(checkpoint.path), checkpoint.client_state()

    def wait_for_checkpoint(self) -> None:
        """Return once a save in the background is on disk; raises what went wrong with it."""
        if self._saver is not None:
            self._saver.wait()

    def module_state_dict(
        self,
        destination: dict[str, Any] | None = None,
        prefix: str = "",
        keep_vars: bool = False,
        exclude_frozen_parameters: bool = False,
    ) -> dict[str, Any]:
        """The module's state dict as it lies on this rank."""
        module = uncompiled(self.module)
        state: dict[str, Any] = module.state_dict(
            destination={} if destination is None else destination,
            prefix=prefix,
            keep_vars=keep_vars,
        )
        if exclude_frozen_parameters:
            for name, param in module.named_parameters(remove_duplicate=False):
                if not param.requires_grad:
                    state.pop(prefix + name, None)
        return state

    def load_module_state_dict(
        self, checkpoint: Mapping[str, Any], strict: bool = True, **_: Any
    ) -> None:
        """Load `checkpoint["module"]` into the module."""
        uncompiled(self.module).load_state_dict(checkpoint["module"], strict=strict)

    def save_16bit_model(
        self,
        save_dir: str | os.PathLike[str],
        save_filename: str = "pytorch_model.bin",
        exclude_frozen_parameters: bool = False,
    ) -> bool:
        """Write the whole model's weights, in the format they train in, to one file by rank 0."""
        state = self._consolidated_16bit_state_dict(exclude_frozen_parameters)
        path = Path(save_dir) / save_filename
        with together(self.groups.world, f"saving the model to {path}"):
            if self.groups.world.rank == 0:
                Path(save_dir).mkdir(parents=True, exist_ok=True)
                _save_aside(state, path)
        return True

    save_fp16_model = save_16bit_model

    def _consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """All weights and buffers whole, on the CPU of rank 0; None elsewhere.

        Gathers one parameter at a time, so that no device holds more than that. Ties share memory.
        """
        names = ParameterNames(self.module)
        keep = self.groups.world.rank == 0
        state: dict[str, Tensor] = {}
        for param, name in names.names.items():
            if exclude_frozen_parameters and not param.requires_grad:
                continue
            with self.gather([param]):
                if keep:
                    whole = param.detach().to("cpu", copy=True)
                    state.update(dict.fromkeys((name, *names.aliases[param]), whole))
        if not keep:
            return None
        buffers = named_buffers(self.module)
        state.update({name: buffer.detach().cpu().clone() for name, buffer in buffers.items()})
        return {key: state[key] for key in self._order(state)}

    def _zero3_consolidated_16bit_state_dict(
        self, exclude_frozen_parameters: bool = False
    ) -> dict[str, Tensor] | None:
        """The same as `_consolidated_16bit_state_dict`, under the name trainers call."""
        return self._consolidated_16bit_state_dict(exclude_frozen_parameters)

    def _order(self, state: Mapping[str, Tensor]) -> list[str]:
        """Keys in the order of the module's own state dict, the rest behind."""
        own = [key for key in self.module.state_dict(keep_vars=True) if key in state]
        return own + [key for key in state if key not in own]

    def _agreed_tag(self, tag: str) -> str:
        """Rank 0's tag, if the configuration lets ranks differ."""
        rule = self.configuration.section("checkpoint").tag_validation
        tags = self.groups.world.all_gather_object(
            tag, label="save_checkpoint: every rank must call it"
        )
        if len(set(tags)) == 1:
            return tag
        held = ", ".join(f"rank {rank}: {other!r}" for rank, other in enumerate(tags))
        if rule == "Fail":
            raise RankMismatchError(f"ranks save under different tags ({held})")
        if rule == "Warn":
            logger.warning("ranks save under different tags (%s); using that of rank 0", held)
        return str(tags[0])

    def _background_saver(self) -> AsyncSaver | None:
        writer = self.configuration.section("checkpoint").writer
        if writer is None or not writer.decoupled:
            return None
        if self._saver is None:
            self._saver = AsyncSaver(comm=self.groups.world)
        return self._saver

    def _bar(self, title: str) -> Any:
        quiet = self.groups.world.rank != 0
        return tqdm(desc=title, unit="B", unit_scale=True, disable=True if quiet else None, delay=1)


def _save_aside(state: object, path: Path) -> None:
    """Write a file of torch's; an earlier one of the name stays until the new one is whole."""
    aside = path.with_name(f"{path.name}.part")
    try:
        torch.save(state, aside)
        aside.replace(path)
    except (OSError, RuntimeError) as error:  # torch reports a full disk by a RuntimeError
        aside.unlink(missing_ok=True)
        raise CheckpointError(f"{path} cannot be written (disk full?): {error}") from error


def _tensor_writer(writer: Any) -> Callable[[Path, Mapping[str, Tensor]], object] | None:
    """What writes tensor files: ds-aio for `writer.type: fast`, else the built-in writer."""
    if writer is None or (writer.type or "").lower() not in ("fast", "fastfilewriter"):
        return None
    try:
        from ds_aio import save
    except ImportError as error:
        raise ConfigError(
            "checkpoint.writer.type: 'fast' needs ds-aio: pip install ds-aio (from a clone:"
            " packages/ds-aio)"
        ) from error
    return lambda path, tensors: save(path, tensors)
