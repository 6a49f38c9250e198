"""From the arguments of `initialize` and the JSON to a running engine."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, fields, is_dataclass
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from deepspeed import registry
from deepspeed.adapters.activation_checkpointing import configure
from deepspeed.check_model import (
    give_own_memory,
    require_module,
    require_no_other_engine,
    require_own_parameters,
    require_values,
)
from deepspeed.comm.facade import TAPS
from deepspeed.config import Config, load_config, resolve_source
from deepspeed.config.batch import WorldSize
from deepspeed.config.load import brought
from deepspeed.config.source import Source
from deepspeed.dataloader import DeepSpeedDataLoader
from deepspeed.distributed import DEFAULT_PORT, device_type, init_distributed, local_rank
from deepspeed.engine import DeepSpeedEngine
from deepspeed.logs import one_rank_warns, speak_as_configured, this_rank
from deepspeed.optimizers import NO_LBFGS, make_optimizer_factory
from deepspeed.precision import autocast_context, input_casts, precision_settings
from deepspeed.progress import MemoryLog, ProgressLog
from deepspeed.strategies import Parts, make_strategy
from ds_core import device as devices
from ds_core.agreement import model_facts, require_agreement
from ds_core.contracts import Hook
from ds_core.errors import ConfigError
from ds_core.groups import Groups, make_groups
from ds_core.optimizers import MakeOptimizer, parameter_groups
from ds_core.schedules import build_schedule

logger = logging.getLogger(__name__)

GivenOptimizer = torch.optim.Optimizer | Callable[..., torch.optim.Optimizer]


@dataclass(frozen=True)
class HookContext:
    """What the factories in `deepspeed.hooks` may look at.

    Attributes:
        sections: all sections of the configuration by key; a factory is given its own.
        monitors: objects with `write_events([(label, value, step)])`.
        add_comm_observer: calls a function after each collective of the engine and of
            `deepspeed.comm`; returns the function that ends it.
    """

    module: nn.Module
    rank: int
    world_size: int
    train_batch_size: int
    micro_batch_size: int
    accumulation_steps: int
    optimizer: torch.optim.Optimizer
    sections: Mapping[str, Any]
    monitors: list[Any]
    add_comm_observer: Callable[[Callable[[Any], None]], Callable[[], None]]


def initialize(
    args: Any = None,
    model: nn.Module | None = None,
    optimizer: GivenOptimizer | None = None,
    model_parameters: Iterable[Any] | None = None,
    training_data: Any = None,
    lr_scheduler: Any = None,
    distributed_port: int = DEFAULT_PORT,
    mpu: Any = None,
    dist_init_required: bool | None = None,
    collate_fn: Callable[[list[Any]], Any] | None = None,
    config: Any = None,
    mesh_param: Any = None,
    config_params: Any = None,
) -> tuple[DeepSpeedEngine, Any, DeepSpeedDataLoader | None, Any]:
    """Make an engine that trains `model` as the configuration says.

    Args:
        args: a namespace or dict that may hold `deepspeed_config`.
        model: any module; it is moved to this rank's device and format in place.
        optimizer: an optimizer over the model's parameters, or a function that makes one of
            parameter groups; instead of the configuration's `optimizer` section.
        model_parameters: parameters, (name, parameter) pairs or parameter groups to train;
            default: all of the model's that require a gradient.
        training_data: a data set to make a loader of.
        lr_scheduler: a schedule, or a function that makes one of the optimizer.
        distributed_port: for the rendezvous, where nobody named one.
        mpu: a Megatron-style object that knows the data- and model-parallel groups.
        dist_init_required: None initialises `torch.distributed` if it is not yet.
        collate_fn: for the loader of `training_data`.
        config: a dict, the path of a JSON file, or base64 of JSON; `config_params` is its old
            name.

    Returns:
        (engine, optimizer, data loader or None, schedule or None).

    Raises:
        ConfigError: anything wrong with the arguments or the configuration, all at once.
        RankMismatchError: ranks that bring different models.
    """
    if not isinstance(model, nn.Module):
        raise ConfigError(
            f"model is {type(model).__name__}, expected a torch.nn.Module; the first argument by "
            "position is args, so write initialize(model=model, config=config)"
        )
    if mesh_param is not None:
        raise ConfigError("mesh_param is not supported; pass mpu with the groups you made")
    check_arguments(args, distributed_port, dist_init_required)
    source = resolve_source(args, config, config_params)
    init_distributed(distributed_port=distributed_port, dist_init_required=dist_init_required)
    make = _special_engine(model) or make_plain
    with one_rank_warns(this_rank()):
        made = make(
            model=model,
            source=source,
            optimizer=optimizer,
            model_parameters=model_parameters,
            training_data=training_data,
            lr_scheduler=lr_scheduler,
            mpu=mpu,
            collate_fn=collate_fn,
        )
    speak_as_configured(made[0].configuration)
    return made


def check_arguments(args: object, distributed_port: object, dist_init_required: object) -> None:
    """Raise `ConfigError` for a value of `initialize` that nobody can have meant."""
    if isinstance(args, (str, bytes, bool, int, float, list, tuple, set)):
        raise ConfigError(
            f"args is {type(args).__name__}, expected a namespace or a dict with "
            "deepspeed_config, or None (a path goes into config)"
        )
    if type(distributed_port) is not int or not 0 < distributed_port < 65536:
        raise ConfigError(
            f"distributed_port is {distributed_port!r}, expected a whole number in 1..65535"
        )
    if dist_init_required is not None and not isinstance(dist_init_required, bool):
        raise ConfigError(
            f"dist_init_required is {dist_init_required!r}, expected True, False or None"
        )


def make_plain(
    *,
    model: nn.Module,
    source: Source,
    optimizer: GivenOptimizer | None,
    model_parameters: Iterable[Any] | None,
    training_data: Any,
    lr_scheduler: Any,
    mpu: Any,
    collate_fn: Callable[[list[Any]], Any] | None,
) -> tuple[DeepSpeedEngine, Any, DeepSpeedDataLoader | None, Any]:
    """What `initialize` returns for a module that no package has an engine of its own for."""
    groups = make_groups(mpu)
    replaced = brought(optimizer, lr_scheduler)
    resolved = load_config(source, world_size=_world(groups, mpu), replaced=replaced)
    engine = build_engine(
        model,
        resolved,
        groups=groups,
        optimizer=optimizer,
        model_parameters=model_parameters,
        lr_scheduler=lr_scheduler,
        mpu=mpu,
        collate_fn=collate_fn,
    )
    if training_data is not None:
        engine.training_dataloader = engine.deepspeed_io(training_data)
    return engine, engine.optimizer, engine.training_dataloader, engine.lr_scheduler


def build_engine(
    model: nn.Module,
    config: Config,
    *,
    groups: Groups,
    optimizer: GivenOptimizer | None = None,
    model_parameters: Iterable[Any] | None = None,
    lr_scheduler: Any = None,
    mpu: Any = None,
    collate_fn: Any = None,
) -> DeepSpeedEngine:
    """An engine of the resolved configuration; collective over all ranks."""
    require_module(model)
    require_values(model)
    give_own_memory(model)
    require_agreement(groups.data, "the model", model_facts(model))
    require_agreement(groups.data, "the configuration", _config_facts(config))
    device = devices.local_device(local_rank()) if device_type() != "cpu" else torch.device("cpu")
    devices.set_device(device)
    trained, chosen = choose_optimizer(model, config, optimizer, model_parameters)
    require_own_parameters(model, trained)
    require_no_other_engine(model, trained)
    parts = Parts(model, trained, chosen, groups, precision_settings(config), config, device)
    strategy = make_strategy(parts)
    schedule = make_schedule(config, strategy.optimizer, lr_scheduler, chosen is not None)
    engine = DeepSpeedEngine(
        model,
        strategy,
        configuration=config,
        device=device,
        has_optimizer=chosen is not None,
        mpu=mpu,
        collate_fn=collate_fn,
        groups=groups,
        schedule=schedule,
        hooks=make_hooks(model, config, groups, strategy.optimizer),
        autocast=autocast_context(config, device.type),
        state_scope="" if groups.model.world_size == 1 else f"mp{groups.model.rank:02d}.",
    )
    if "activation_checkpointing" in config.sections:
        configure_checkpointing(config, mpu)
    return engine


def configure_checkpointing(config: Config, mpu: Any) -> None:
    """Make the `activation_checkpointing` section the default of `deepspeed.checkpointing`."""
    section = config.section("activation_checkpointing")
    configure(mpu, deepspeed_config=SimpleNamespace(activation_checkpointing_config=section))


def _config_facts(config: Config) -> dict[str, object]:
    """What must be the same on all ranks; paths and the like may differ."""
    alike = ("optimizer", "scheduler", "fp16", "bf16", "torch_autocast", "data_types")
    facts: dict[str, object] = {"batch": config.batch, **asdict(config.general)}
    facts |= {name: config.sections.get(name) for name in alike}
    zero: Any = config.sections.get("zero_optimization")
    values = {} if zero is None else {each.name: getattr(zero, each.name) for each in fields(zero)}
    plain = {name: value for name, value in values.items() if not is_dataclass(value)}
    return facts | {f"zero_optimization.{name}": value for name, value in plain.items()}


def _world(groups: Groups, mpu: Any) -> WorldSize:
    source = "the process group" if mpu is None else "mpu.get_data_parallel_group()"
    return WorldSize(groups.data.world_size, source)


def _special_engine(model: nn.Module) -> Callable[..., Any] | None:
    """The engine that an installed package offers for this kind of model."""
    points = registry.offered("engines")
    for cls in type(model).__mro__:
        name = f"{cls.__module__.partition('.')[0]}.{cls.__name__}"
        if name in points:
            found: Callable[..., Any] = registry.load("engines", name)
            return found
    return None


def choose_optimizer(
    model: nn.Module,
    config: Config,
    given: GivenOptimizer | None,
    model_parameters: Iterable[Any] | None,
) -> tuple[list[dict[str, Any]], torch.optim.Optimizer | MakeOptimizer | None]:
    """The groups to train and what trains them."""
    section: Any = config.sections.get("optimizer")
    if given is not None and not callable(given) and not isinstance(given, torch.optim.Optimizer):
        raise ConfigError(
            f"optimizer is {type(given).__name__}, expected a torch.optim.Optimizer or a function "
            "that makes one"
        )
    if isinstance(given, torch.optim.LBFGS):
        raise ConfigError(NO_LBFGS)
    if isinstance(given, torch.optim.Optimizer):
        if section is not None:
            _two_optimizers()
        return parameter_groups(given.param_groups), given
    if model_parameters is not None and not isinstance(model_parameters, Iterable):
        raise ConfigError(
            f"model_parameters is {type(model_parameters).__name__}, expected an iterable of "
            "parameters or parameter groups"
        )
    listed = list(model_parameters) if model_parameters is not None else []
    if model_parameters is not None and not listed and (given or section) is not None:
        raise ConfigError(
            "model_parameters is empty (an iterator that was used up?); leave it out to train "
            "every parameter that requires a gradient"
        )
    groups = parameter_groups(listed or (p for p in model.parameters() if p.requires_grad))
    if given is not None:
        if section is not None:
            _two_optimizers()
        maker: Callable[..., torch.optim.Optimizer] = given
        return groups, lambda replaced: maker(_as_given(replaced))
    if section is None:
        return groups, None
    if not any(group["params"] for group in groups):
        raise ConfigError("nothing to train: no parameter of the model requires a gradient")
    return groups, make_optimizer_factory(section.type, section.params)


def _two_optimizers() -> None:
    logger.warning(
        "initialize() was given an optimizer and the configuration names another in its "
        "'optimizer' section; the one that was given is used"
    )


def _as_given(groups: list[dict[str, Any]]) -> list[Any]:
    """A plain list of parameters where there is one group without options of its own."""
    plain = len(groups) == 1 and set(groups[0]) == {"params"}
    return list(groups[0]["params"]) if plain else groups


def make_schedule(
    config: Config, optimizer: torch.optim.Optimizer, given: Any, has_optimizer: bool
) -> Any:
    section: Any = config.sections.get("scheduler")
    if given is not None:
        if section is not None and section.type is not None:
            logger.warning(
                "initialize() was given a schedule and the configuration names another in its "
                "'scheduler' section; the one that was given is used"
            )
        is_schedule = hasattr(given, "step") and hasattr(given, "state_dict")
        made = given if is_schedule or not callable(given) else given(optimizer)
        if not (hasattr(made, "step") and hasattr(made, "state_dict")):
            raise ConfigError(
                f"lr_scheduler is or makes {type(made).__name__}, expected a schedule with step() "
                "and state_dict()"
            )
        return made
    if section is None or section.type is None:
        return None
    if not has_optimizer:
        raise ConfigError(f"scheduler: {section.type!r} needs an optimizer, and there is none")
    return build_schedule(section.type, optimizer, section.params)


def make_hooks(
    model: nn.Module, config: Config, groups: Groups, optimizer: torch.optim.Optimizer
) -> list[Hook]:
    hooks: list[Hook] = input_casts(config)
    monitors = [
        made
        for name in registry.offered("monitors")
        if (section := config.sections.get(name)) is not None
        and (made := registry.load("monitors", name)(section)) is not None
    ]
    context = HookContext(
        module=model,
        rank=groups.data.rank,
        world_size=groups.data.world_size,
        train_batch_size=config.batch.train,
        micro_batch_size=config.batch.micro,
        accumulation_steps=config.batch.accumulation,
        optimizer=optimizer,
        sections=config.sections,
        monitors=monitors,
        add_comm_observer=_add_observer_to(groups),
    )
    for name in registry.offered("hooks"):  # SECTION, or SECTION.WHAT where one makes several
        section = config.sections.get(name.partition(".")[0])
        if section is None:
            continue
        hook = registry.load("hooks", name)(section, context)
        if hook is not None:
            hooks.append(hook)
    if config.general.memory_breakdown:
        hooks.append(MemoryLog())
    if config.general.steps_per_print:
        hooks.append(ProgressLog(config.general.steps_per_print, rank=groups.world.rank))
    return hooks


def _add_observer_to(
    groups: Groups,
) -> Callable[[Callable[[Any], None]], Callable[[], None]]:
    def add(observer: Callable[[Any], None]) -> Callable[[], None]:
        removers = [groups.taps.add(observer), TAPS.add(observer)]

        def remove() -> None:
            for remover in removers:
                remover()

        return remove

    return add
