"""Packed sequences attend only to themselves."""

from itertools import pairwise

import pytest
import torch
from torch.nn.functional import scaled_dot_product_attention as attention

from ds_data import BatchRules, LoaderOptions, RuleError, VariableBatchLoader, pack_sequences

SEQUENCES = [torch.arange(3) + 10, torch.arange(1) + 20, torch.arange(4) + 30]


def test_positions_borders_and_labels():
    packed = pack_sequences(SEQUENCES, pad_to=10, pad_id=7)
    assert packed.input_ids.tolist() == [10, 11, 12, 20, 30, 31, 32, 33, 7, 7]
    assert packed.position_ids.tolist() == [0, 1, 2, 0, 0, 1, 2, 3, 0, 0]
    assert packed.labels.tolist() == [-100, 11, 12, -100, -100, 31, 32, 33, -100, -100]
    assert packed.cu_seqlens.tolist() == [0, 3, 4, 8]
    assert packed.cu_seqlens.dtype == torch.int32
    assert packed.max_seqlen == 4


def test_masked_attention_equals_each_sequence_alone():
    torch.manual_seed(0)
    packed = pack_sequences(SEQUENCES, pad_to=10)
    q, k, v = torch.randn(3, 1, 1, 10, 8)
    together = attention(q, k, v, attn_mask=packed.attention_mask())
    edges = packed.cu_seqlens.tolist()
    for begin, end in pairwise(edges):
        part = slice(begin, end)
        alone = attention(q[:, :, part], k[:, :, part], v[:, :, part], is_causal=True)
        torch.testing.assert_close(together[:, :, part], alone)


@pytest.mark.parametrize("sequences", [[], [torch.arange(0)]])
def test_nothing_to_pack_is_refused(sequences):
    with pytest.raises(RuleError, match="at least one sequence"):
        pack_sequences(sequences)


def test_too_short_a_row_is_refused():
    with pytest.raises(RuleError, match="8 tokens do not fit in pad_to=4"):
        pack_sequences(SEQUENCES, pad_to=4)


def test_another_device_keeps_everything():
    packed = pack_sequences(SEQUENCES).to("cpu")
    assert packed.input_ids.tolist() == [10, 11, 12, 20, 30, 31, 32, 33]
    assert packed.max_seqlen == 4


def packing_loader(workers):
    data = [torch.arange(n % 13 + 1) + 100 * n for n in range(200)]
    return VariableBatchLoader(
        data,
        [len(sample) for sample in data],
        BatchRules(max_tokens=64, order="best_fit", count="unpadded"),
        options=LoaderOptions(collate_fn=pack_sequences, num_workers=workers),
    )


@pytest.mark.parametrize("workers", [(0, 2), (2, 0)])
def test_packed_batches_fill_their_budget_and_resume(workers):
    before, after = workers
    whole = [batch.input_ids.tolist() for batch in packing_loader(0)]
    assert sum(map(len, whole)) / (64 * len(whole)) > 0.98
    stopped = packing_loader(before)
    seen = [batch.input_ids.tolist() for _, batch in zip(range(5), stopped, strict=False)]
    resumed = packing_loader(after)
    resumed.load_state_dict(stopped.state_dict())
    assert seen + [batch.input_ids.tolist() for batch in resumed] == whole
