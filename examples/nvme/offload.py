"""Train with the optimizer's state in memory or on a disk, and compare losses and memory.

python offload.py --device none
python offload.py --device nvme --nvme_path /local_nvme
"""

from __future__ import annotations

import argparse
import json
import resource
import time
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import deepspeed

HERE = Path(__file__).resolve().parent
STATE_BYTES = 12
"""Of a parameter in bf16: its fp32 master and two moments."""


class Block(nn.Module):
    """A layer on normalised input, added to what it is given."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.layer = nn.LayerNorm(width), nn.Linear(width, width)

    def forward(self, hidden: Tensor) -> Tensor:
        return hidden + nn.functional.gelu(self.layer(self.norm(hidden)))


def build_model(layers: int, width: int) -> nn.Module:
    blocks = [Block(width) for _ in range(layers)]
    return nn.Sequential(*blocks, nn.LayerNorm(width), nn.Linear(width, 1))


def configuration(args: argparse.Namespace) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((HERE / "ds_config.json").read_text())
    if args.device != "none":
        place = {"device": args.device}
        if args.device == "nvme":
            place["nvme_path"] = str(args.nvme_path or args.out / "swap")
        config["zero_optimization"]["offload_optimizer"] = place
    return config


def peak_mebibytes() -> float:
    """The most memory this process has held."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("none", "cpu", "nvme"), default="nvme")
    parser.add_argument("--nvme_path", type=Path, help="folder on the disk; default: in --out")
    parser.add_argument("--out", type=Path, default=HERE / "runs", help="results folder")
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--local_rank", type=int, default=-1, help="set by the launcher")
    args = parser.parse_args()
    deepspeed.init_distributed()
    torch.manual_seed(0)
    args.out.mkdir(parents=True, exist_ok=True)
    model = build_model(args.layers, args.width)
    parameters = sum(param.numel() for param in model.parameters())
    before = peak_mebibytes()
    engine, *_ = deepspeed.initialize(model=model, config=configuration(args))
    generator = torch.Generator().manual_seed(dist.get_rank())
    inputs = torch.randn(8, args.width, generator=generator).to(engine.device, torch.bfloat16)
    losses, start = [], time.perf_counter()
    for _ in range(args.steps):
        loss = nn.functional.mse_loss(engine(inputs).float(), inputs[:, :1].float())
        engine.backward(loss)
        engine.step()
        losses.append(loss.item())
    seconds = (time.perf_counter() - start) / args.steps
    result = {
        "losses": losses,
        "peak_mebibytes": peak_mebibytes() - before,
        "state_mebibytes": parameters * STATE_BYTES / dist.get_world_size() / 2**20,
        "seconds": seconds,
    }
    if dist.get_rank() == 0:
        (args.out / f"{args.device}.json").write_text(json.dumps(result))
        print(
            f"{args.device}: {parameters / 1e6:.0f} M parameters, state of "
            f"{result['state_mebibytes']:.0f} MiB a rank; peak grew by "
            f"{result['peak_mebibytes']:.0f} MiB, {seconds:.2f} s a step, "
            f"last loss {losses[-1]:.6f}"
        )
    engine.destroy()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
