"""Small models as lists of layers, trained in a pipeline and in one process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ds_core.groups import make_groups
from ds_core.optimizers import parameter_groups
from ds_core.precision import DynamicLossScaler, PrecisionSettings
from ds_core.precision.cast import cast_module
from ds_core.replicated import Replicated, ReplicatedSettings
from ds_pipeline import LayerSpec, PipelineEngine, PipelineModule, PipelineSettings, TiedLayerSpec
from support.training import Run, adamw, one_thread

VOCABULARY, WIDTH, LENGTH, STEPS = 19, 16, 6, 3


class Block(nn.Module):
    """Attention and a feed-forward part, each with a residual."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width, bias=False)  # keys: no gradient
        self.out = nn.Linear(width, width)
        self.feed = nn.Sequential(
            nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, hidden: Tensor) -> Tensor:
        queries, keys, values = self.mix(self.norm1(hidden)).chunk(3, dim=-1)
        mixed = nn.functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        hidden = hidden + self.out(mixed)
        return hidden + self.feed(self.norm2(hidden))


def as_head(embedding: nn.Module, hidden: Tensor) -> Tensor:
    """An embedding used as the output layer."""
    return hidden @ embedding.weight.t()


def gpt_layers() -> list[Any]:
    """Eight layers, the first and the last tied."""
    return [
        TiedLayerSpec("embed", nn.Embedding, VOCABULARY, WIDTH),
        *(LayerSpec(Block, WIDTH) for _ in range(5)),
        LayerSpec(nn.LayerNorm, WIDTH),
        TiedLayerSpec("embed", nn.Embedding, VOCABULARY, WIDTH, forward_fn=as_head),
    ]


def gpt_loss(logits: Tensor, targets: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.float().flatten(0, 1), targets.flatten())


def gpt_batch(step: int, micro: int, replica: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + replica)
    tokens = torch.randint(VOCABULARY, (2, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def conv_layers() -> list[Any]:
    """Convolutions, functions and a layer without parameters."""
    return [
        LayerSpec(nn.Conv2d, 1, 4, 3, padding=1),
        torch.relu,
        LayerSpec(nn.Conv2d, 4, 4, 3, padding=1),
        LayerSpec(nn.GELU),
        LayerSpec(nn.Conv2d, 4, 4, 3, padding=1),
        torch.tanh,
        LayerSpec(nn.Flatten),
        LayerSpec(nn.Linear, 4 * 36, 5),
    ]


def conv_batch(step: int, micro: int, replica: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1000 * step + 10 * micro + replica)
    images = torch.randn(2, 1, 6, 6, generator=generator)
    return images, torch.randint(5, (2,), generator=generator)


MODELS: dict[str, tuple[Callable[[], list[Any]], Callable[..., Tensor], Callable[..., Any]]] = {
    "gpt": (gpt_layers, gpt_loss, gpt_batch),
    "conv": (conv_layers, nn.functional.cross_entropy, conv_batch),
}


@dataclass(frozen=True)
class Case:
    """What the contract grid varies."""

    model: str = "gpt"
    stages: int = 2
    schedule: str = "1f1b"
    micro_batches: int = 2
    interval: int = 0
    dtype: torch.dtype = torch.float32
    max_norm: float = 0.1

    @property
    def chunks(self) -> int:
        return 2 if self.schedule == "interleaved" else 1


def build(case: Case, *, record: bool = False, **module_arguments: Any) -> PipelineEngine:
    """An engine over this rank's stage."""
    make_layers, loss, _ = MODELS[case.model]
    arguments: dict[str, Any] = {
        "num_stages": case.stages,
        "loss_fn": loss,
        "seed_layers": True,
        "partition_method": "uniform",
        "activation_checkpoint_interval": case.interval,
        "chunks": case.chunks,
    }
    module = PipelineModule(make_layers(), **(arguments | module_arguments))
    return engine_over(module, case, record=record)


def engine_over(module: PipelineModule, case: Case, *, record: bool = False) -> PipelineEngine:
    """An engine with replicas of each stage."""
    groups = make_groups(module.grid if dist.is_initialized() else None)
    params = parameter_groups(module.parameters())
    originals = cast_module(
        module, device=torch.device("cpu"), dtype=case.dtype, keep=params[0]["params"]
    )
    precision = PrecisionSettings(case.dtype)
    if case.dtype == torch.float16:
        precision = replace(precision, make_scaler=lambda: DynamicLossScaler(initial=64))
    strategy = Replicated(
        module,
        params,
        adamw,
        groups=groups,
        precision=precision,
        settings=ReplicatedSettings(max_norm=case.max_norm),
        originals=originals,
    )
    return PipelineEngine(
        module,
        strategy,
        groups=groups,
        micro_batch_size=2,
        accumulation_steps=case.micro_batches,
        pipeline=PipelineSettings(schedule=case.schedule, record=record),
    )


def batches(case: Case, step: int, replica: int) -> Iterator[Any]:
    """The micro-batches of one step on one replica, in the format of the run."""
    for micro in range(case.micro_batches):
        inputs, labels = MODELS[case.model][2](step, micro, replica)
        yield inputs.to(case.dtype) if inputs.is_floating_point() else inputs, labels


def pipeline_run(case: Case, steps: int = STEPS, first: int = 0, engine: Any = None) -> Run:
    """Train in a pipeline; weights are those of this rank's stage."""
    engine = build(case) if engine is None else engine
    replica = engine.grid.data_parallel_id
    run = Run()
    for step in range(first, first + steps):
        loss = engine.train_batch(batches(case, step, replica))
        run.losses.append(loss.item())
        run.norms.append(engine.last_report.grad_norm)
    for name, param in engine.module.named_parameters():
        run.weights[name] = engine.strategy.held(param).detach().float().clone()
    return run


def pipeline_runs(cases: list[Case]) -> list[Run]:
    """Several runs on the same ranks."""
    return [pipeline_run(case) for case in cases]


class Whole(nn.Module):
    """All layers in one module under the names they have in a pipeline."""

    def __init__(self, layers: list[Any]) -> None:
        super().__init__()
        self.tied_modules = nn.ModuleDict()
        self.calls: list[Callable[[Any], Any]] = []
        for index, spec in enumerate(layers):
            torch.manual_seed(1234 + index)
            if isinstance(spec, TiedLayerSpec):
                if spec.key not in self.tied_modules:
                    self.tied_modules[spec.key] = spec.build()
                self.calls.append(_bound(spec, self.tied_modules[spec.key]))
            elif isinstance(spec, LayerSpec):
                built = spec.build()
                self.add_module(str(index), built)
                self.calls.append(built)
            else:
                self.calls.append(spec)

    def forward(self, value: Any) -> Any:
        for call in self.calls:
            value = call(value)
        return value


def _bound(spec: TiedLayerSpec, module: nn.Module) -> Callable[[Any], Any]:
    forward = spec.forward_fn
    return module if forward is None else lambda value: forward(module, value)


@one_thread()
def plain_run(case: Case, replicas: int = 1, steps: int = STEPS) -> Run:
    """The same training in one process, by plain PyTorch in fp32."""
    make_layers, loss_fn, make_batch = MODELS[case.model]
    model = Whole(make_layers())
    optimizer = adamw(list(model.parameters()))
    run = Run()
    count = case.micro_batches * replicas
    for step in range(steps):
        total = 0.0
        for micro in range(case.micro_batches):
            for replica in range(replicas):
                inputs, labels = make_batch(step, micro, replica)
                loss = loss_fn(model(inputs), labels)
                (loss / count).backward()
                total += loss.item()
        run.losses.append(total / count)
        limit = case.max_norm or float("inf")
        run.norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), limit)))
        optimizer.step()
        optimizer.zero_grad()
    run.weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    return run


def assert_same(ours: Run, plain: Run, *, tolerance: float) -> None:
    """Losses, norms and the weights of one stage agree with the whole model's."""
    close = {"rtol": tolerance, "atol": tolerance}
    torch.testing.assert_close(torch.tensor(ours.losses), torch.tensor(plain.losses), **close)
    torch.testing.assert_close(torch.tensor(ours.norms), torch.tensor(plain.norms), **close)
    for name, value in ours.weights.items():
        torch.testing.assert_close(
            value, plain.weights[name], **close, msg=lambda text, name=name: f"{name}: {text}"
        )
