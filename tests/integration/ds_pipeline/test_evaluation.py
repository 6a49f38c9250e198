"""Evaluation with other sizes than training, and without traces."""

from __future__ import annotations

import torch

from support.pipelines import Case, Whole, build, gpt_batch, gpt_layers, gpt_loss, pipeline_run
from support.ranks import run_ranks

CASE = Case("gpt", 2, "1f1b", 2)


def large_batches(count):
    for number in range(count):
        parts = [gpt_batch(77, number, row) for row in range(4)]
        yield tuple(torch.cat(tensors) for tensors in zip(*parts, strict=True))


def alternate():
    """Train, evaluate with 8 rows and 3 micro-batches, three times over."""
    engine = build(CASE)
    losses, results = [], []
    for step in range(3):
        run = pipeline_run(CASE, steps=1, first=step, engine=engine)
        losses += run.losses
        result, logits = engine.eval_batch(
            large_batches(3), return_logits=True, num_micro_batches=3
        )
        results.append((result.item(), None if logits is None else tuple(logits.shape)))
        assert engine.training
        assert all(param.grad is None for param in engine.module.parameters())
    return losses, results


def test_evaluation_between_steps_changes_nothing():
    expected = run_ranks(pipeline_run, 2, CASE)[0].losses
    first, last = run_ranks(alternate, 2)
    assert first[0] == last[0] == expected
    assert [loss for loss, _ in first[1]] == [loss for loss, _ in last[1]]
    assert {shape for _, shape in first[1]} == {None}
    assert {shape for _, shape in last[1]} == {(24, 6, 19)}


def evaluate_everything():
    engine = build(Case("gpt", 2, "interleaved", 2))
    data = list(large_batches(2))
    found = {
        "mean": engine.eval_batch(iter(data)),
        "list": engine.eval_batch(iter(data), reduce_output=None),
        "outputs": engine.eval_batch(iter(data), compute_loss=False, reduce_output=None),
        "quiet": engine.eval_batch(iter(data), bcast_loss=False),
    }
    engine.set_dataloader(data)
    engine.set_batch_fn(lambda batch: (batch[0], batch[1]))
    return found | {"loader": [engine.eval_batch() for _ in range(2)]}


def test_every_way_to_evaluate_agrees_with_one_process():
    model = Whole(gpt_layers()).eval()
    data = list(large_batches(2))
    with torch.no_grad():
        outputs = [model(inputs) for inputs, _ in data]
        losses = [gpt_loss(o, labels) for o, (_, labels) in zip(outputs, data, strict=True)]
    mean = torch.stack(losses).mean()
    first, last = run_ranks(evaluate_everything, 2)
    for found in (first, last):
        torch.testing.assert_close([found["mean"], *found["loader"]], [mean] * 3)
    torch.testing.assert_close([last["quiet"], *last["list"]], [mean, *losses])
    torch.testing.assert_close(last["outputs"], outputs)
    assert (first["list"], first["outputs"], first["quiet"]) == (None, None, None)
