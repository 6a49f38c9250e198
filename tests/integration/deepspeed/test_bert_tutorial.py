"""The code and the JSON of the BERT pretraining tutorial (founding document 001), as written."""

from __future__ import annotations

import argparse
import json

import pytest
import torch
from torch import nn

import deepspeed

CONFIG = {
    "train_batch_size": 4096,
    "train_micro_batch_size_per_gpu": 64,
    "steps_per_print": 1000,
    "optimizer": {
        "type": "Adam",
        "params": {
            "lr": 2e-4,
            "max_grad_norm": 1.0,
            "weight_decay": 0.01,
            "bias_correction": False,
        },
    },
    "fp16": {"enabled": True, "loss_scale": 0, "initial_scale_power": 16},
}


class Network(nn.Module):
    """Stands where the tutorial's BERT stands: masked tokens in, loss out."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(30, 8)
        self.encoder = nn.Linear(8, 8)
        self.head = nn.Linear(8, 30)

    def forward(self, batch):
        tokens, labels = batch
        logits = self.head(torch.tanh(self.encoder(self.embed(tokens))))
        return nn.functional.cross_entropy(logits.float().flatten(0, 1), labels.flatten())


class BertMultiTask:
    """The tutorial's wrapper: not a module, its network is one."""

    def __init__(self, args):
        torch.manual_seed(0)
        self.network = Network()


def get_argument_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--fp16", action="store_true")
    return parser


def get_arguments(arguments):
    parser = get_argument_parser()
    # Include DeepSpeed configuration arguments
    parser = deepspeed.add_config_arguments(parser)

    args = parser.parse_args(arguments)

    return args


def prepare_optimizer_parameters(args, model):
    named = list(model.network.named_parameters())
    decay = [p for n, p in named if "bias" not in n]
    rest = [p for n, p in named if "bias" in n]
    return [{"params": decay, "weight_decay": 0.01}, {"params": rest, "weight_decay": 0.0}]


def prepare_model_optimizer(args):
    # Loading Model
    model = BertMultiTask(args)

    # Optimizer parameters
    optimizer_parameters = prepare_optimizer_parameters(args, model)
    model.network, optimizer, _, _ = deepspeed.initialize(
        args=args,
        model=model.network,
        model_parameters=optimizer_parameters,
        dist_init_required=False,
    )
    return model, optimizer


def checkpoint_model(
    PATH, ckpt_id, model, epoch, last_global_step, last_global_data_samples, **kwargs
):
    """Utility function for checkpointing model + optimizer dictionaries
    The main purpose for this is to be able to resume training from that instant again
    """
    checkpoint_state_dict = {
        "epoch": epoch,
        "last_global_step": last_global_step,
        "last_global_data_samples": last_global_data_samples,
    }
    # Add extra kwargs too
    checkpoint_state_dict.update(kwargs)

    success = model.network.save_checkpoint(PATH, ckpt_id, checkpoint_state_dict)

    return success


def load_training_checkpoint(args, model, PATH, ckpt_id):
    """Utility function for checkpointing model + optimizer dictionaries
    The main purpose for this is to be able to resume training from that instant again
    """
    _, checkpoint_state_dict = model.network.load_checkpoint(PATH, ckpt_id)
    epoch = checkpoint_state_dict["epoch"]
    last_global_step = checkpoint_state_dict["last_global_step"]
    last_global_data_samples = checkpoint_state_dict["last_global_data_samples"]
    del checkpoint_state_dict
    return (epoch, last_global_step, last_global_data_samples)


def train(args, model, optimizer, micro_batches):
    losses = []
    for number in range(micro_batches):
        generator = torch.Generator().manual_seed(number)
        batch = torch.randint(30, (2, 64, 4), generator=generator)
        loss = model.network((batch[0], batch[1]))
        # Compute loss
        if args.deepspeed:
            model.network.backward(loss)
        else:
            if args.fp16:
                optimizer.backward(loss)
            else:
                loss.backward()
        if args.deepspeed:
            model.network.step()
        else:
            optimizer.step()
            optimizer.zero_grad()
        losses.append(loss.item())
    return losses


@pytest.fixture
def args(tmp_path):
    file = tmp_path / "deepspeed_bsz4096_adam_config.json"
    file.write_text(json.dumps(CONFIG))
    deepspeed.init_distributed()
    return get_arguments(["--deepspeed", "--deepspeed_config", str(file), "--fp16"])


def test_the_arguments_say_what_the_tutorial_says(args):
    assert args.deepspeed
    assert args.deepspeed_config.endswith("deepspeed_bsz4096_adam_config.json")
    assert not get_arguments([]).deepspeed


def test_accumulation_follows_from_the_batch_sizes(args):
    model, _ = prepare_model_optimizer(args)
    engine = model.network
    assert isinstance(engine, deepspeed.DeepSpeedEngine)
    assert engine.gradient_accumulation_steps() == 64
    assert engine.train_batch_size() == 4096
    assert engine.train_micro_batch_size_per_gpu() == 64
    assert engine.gradient_clipping() == 1.0
    assert engine.dynamic_loss_scale()
    assert engine.initial_dynamic_scale() == 2**16


def test_the_training_loop_learns_and_resumes(args, tmp_path):
    model, optimizer = prepare_model_optimizer(args)
    train(args, model, optimizer, 5 * 64)
    assert model.network.global_steps == 5
    assert model.network.skipped_steps < 5
    assert checkpoint_model(tmp_path, "ckpt5", model, 1, 5, 5 * 4096, note="extra")
    expected = train(args, model, optimizer, 2 * 64)

    again, optimizer = prepare_model_optimizer(args)
    assert load_training_checkpoint(args, again, tmp_path, "ckpt5") == (1, 5, 5 * 4096)
    assert again.network.global_steps == 5
    assert train(args, again, optimizer, 2 * 64) == expected


def test_the_kernel_fragment_reads_its_configuration(args):
    from deepspeed import DeepSpeedConfig, DeepSpeedTransformerConfig, DeepSpeedTransformerLayer

    if hasattr(args, "deepspeed_config") and args.deepspeed_config:
        ds_config = DeepSpeedConfig(args.deepspeed_config)
    else:
        raise RuntimeError("deepspeed_config is not found in args.")
    assert ds_config.train_micro_batch_size_per_gpu == 64
    assert ds_config.fp16_enabled
    with pytest.raises(NotImplementedError, match=r"torch\.nn\.TransformerEncoderLayer"):
        DeepSpeedTransformerConfig(batch_size=ds_config.train_micro_batch_size_per_gpu)
    assert isinstance(DeepSpeedTransformerLayer, type)
