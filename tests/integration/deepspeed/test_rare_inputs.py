"""What programs bring rarely: odd data sets, schedules and optimizers, copies of an engine."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import IterableDataset

import deepspeed
from ds_core.errors import ConfigError, StateError
from support.ranks import run_ranks

ADAMW = {"type": "AdamW", "params": {"lr": 0.01}}


def config_of(stage=0, **sections):
    return {
        "train_micro_batch_size_per_gpu": 2,
        "zero_optimization": {"stage": stage, "stage3_param_persistence_threshold": 0},
        **sections,
    }


def make_net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))


class Stream(IterableDataset):
    """Five samples of this rank's own, of unknown number."""

    def __iter__(self):
        rank = torch.distributed.get_rank()
        yield from (torch.full((4,), 10.0 * rank + number) for number in range(5))


def train_from_a_stream(stage):
    engine, _, loader, _ = deepspeed.initialize(
        model=make_net(), training_data=Stream(), config=config_of(stage, optimizer=ADAMW)
    )
    seen = []
    for batch in loader:
        seen += batch[:, 0].tolist()
        engine.backward(engine(batch).square().mean())
        engine.step()
    endless = iter(deepspeed.RepeatingLoader(loader))
    assert [len(next(endless)) for _ in range(4)] == [2, 2, 1, 2]
    with pytest.raises(TypeError, match="has no len"):
        len(loader)
    return seen, engine.global_steps


@pytest.mark.parametrize("stage", [0, 3])
def test_a_stream_of_samples_is_read_to_its_end(stage):
    first, second = run_ranks(train_from_a_stream, 2, stage)
    assert first == ([0.0, 1.0, 2.0, 3.0, 4.0], 3)
    assert second == ([10.0, 11.0, 12.0, 13.0, 14.0], 3)


def make_plateau_engine(stage=0):
    return deepspeed.initialize(
        model=make_net(),
        config=config_of(stage, optimizer=ADAMW),
        lr_scheduler=lambda optimizer: ReduceLROnPlateau(optimizer, factor=0.5, patience=0),
    )[0]


def one_step(engine, **arguments):
    engine.backward(engine(torch.ones(2, 4)).square().mean())
    return engine.step(**arguments)


def plateau(stage, folder):
    engine = make_plateau_engine(stage)
    for metric in (1.0, 2.0):
        one_step(engine, lr_kwargs={"metrics": metric})
    assert engine.get_lr() == [0.005]
    engine.save_checkpoint(folder)
    again = make_plateau_engine(stage)
    again.load_checkpoint(folder)
    one_step(again, lr_kwargs={"metrics": 3.0})
    return again.get_lr()


@pytest.mark.parametrize("stage", [0, 2, 3])
def test_a_plateau_schedule_moves_by_the_metric_it_is_given(stage, tmp_path):
    assert run_ranks(plateau, 1, stage, str(tmp_path)) == [[0.0025]]


def test_a_plateau_schedule_without_a_metric_says_how_to_give_one_before_anything_moves():
    engine = make_plateau_engine()
    before = [param.clone() for param in engine.module.parameters()]
    with pytest.raises(StateError, match=r"lr_kwargs=\{'metrics'"):
        one_step(engine)
    for param, old in zip(engine.module.parameters(), before, strict=True):
        torch.testing.assert_close(param, old, rtol=0, atol=0)


def train_embedding(stage):
    torch.manual_seed(0)
    net = nn.EmbeddingBag(10, 3, sparse=True)
    engine, *_ = deepspeed.initialize(
        model=net,
        optimizer=sparse_adam(net.parameters()),
        config=config_of(stage, gradient_clipping=0),
    )
    for step in range(3):
        rows = torch.tensor([[step, step + 1 + engine.global_rank]])
        engine.backward(engine(rows).square().sum())
        engine.step()
    return net.weight.detach().clone()


def sparse_adam(params):
    return torch.optim.SparseAdam(list(params), lr=0.1)


def test_sparse_adam_trains_sparse_embeddings_alike_on_all_ranks():
    first, second = run_ranks(train_embedding, 2, 0)
    torch.testing.assert_close(first, second, rtol=0, atol=0)
    torch.manual_seed(0)
    net = nn.EmbeddingBag(10, 3, sparse=True)
    optimizer = sparse_adam(net.parameters())
    for step in range(3):
        losses = [net(torch.tensor([[step, step + 1 + rank]])).square().sum() for rank in (0, 1)]
        (sum(losses) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
    torch.testing.assert_close(first, net.weight.detach(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_sparse_adam_is_refused_where_weights_are_cut(stage):
    with pytest.raises(ConfigError, match="SparseAdam looks at whole parameters"):
        train_embedding(stage)


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_an_engine_is_not_copied_but_says_what_is(stage, copied):
    engine, *_ = deepspeed.initialize(model=make_net(), config=config_of(stage, optimizer=ADAMW))
    with pytest.raises(StateError, match=r"save_checkpoint"):
        copied(engine)


def copy_the_module(stage):
    engine, *_ = deepspeed.initialize(model=make_net(), config=config_of(stage, optimizer=ADAMW))
    one_step(engine)
    with deepspeed.zero.GatheredParameters(engine.module.parameters()):
        average = copy.deepcopy(engine.module)
        expected = engine.module(torch.ones(2, 4)).detach()
    torch.testing.assert_close(average(torch.ones(2, 4)).detach(), expected)
    one_step(engine)
    return float((average(torch.ones(2, 4)) - engine.module(torch.ones(2, 4))).abs().max())


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_the_module_can_be_copied_while_it_is_whole(stage):
    assert run_ranks(copy_the_module, 1, stage)[0] > 0


@pytest.mark.parametrize("stage", [0, 1, 2])
def test_the_module_can_be_pickled(stage):
    engine, *_ = deepspeed.initialize(model=make_net(), config=config_of(stage, optimizer=ADAMW))
    one_step(engine)
    again = pickle.loads(pickle.dumps(engine.module))
    expected = engine.module(torch.ones(2, 4))
    torch.testing.assert_close(again(torch.ones(2, 4)), expected, rtol=0, atol=0)


class Quantised(nn.Module):
    """A frozen weight in integers beside a trained one, as in adapters on a quantised model."""

    def __init__(self):
        super().__init__()
        self.base = nn.Parameter(torch.tensor([[1, 2]], dtype=torch.int8), requires_grad=False)
        self.adapter = nn.Linear(2, 2, bias=False)
        self.scale = nn.Parameter(torch.tensor(2.0))

    def forward(self, x):
        return self.adapter(x * self.base.to(x.dtype)) * self.scale


def train_quantised(stage):
    torch.manual_seed(0)
    config = config_of(stage) | {"gradient_clipping": 0}
    config["optimizer"] = {"type": "SGD", "params": {"lr": 0.1}}
    engine, *_ = deepspeed.initialize(model=Quantised(), config=config)
    for _ in range(2):
        engine.backward(engine(torch.ones(1, 2)).mean())
        engine.step()
    with engine.gather(list(engine.module.parameters())):
        return [param.detach().clone() for param in engine.module.parameters()]


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_frozen_integers_and_scalars_train_like_plain_torch(stage):
    torch.manual_seed(0)
    model = Quantised()
    optimizer = torch.optim.SGD([model.adapter.weight, model.scale], lr=0.1)
    for _ in range(2):
        model(torch.ones(1, 2)).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    for found in run_ranks(train_quantised, 2, stage):
        for value, param in zip(found, model.parameters(), strict=True):
            torch.testing.assert_close(value, param.detach(), rtol=1e-6, atol=1e-6)
