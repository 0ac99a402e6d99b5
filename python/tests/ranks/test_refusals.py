"""Bad use: one line on every rank, and the process goes on."""

import dense
import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab.torch import _op, next_token_labels, positions, ring_attention, shard
from ringlab.torch._ring import contents_of_files

GOOD = dense.random_tensors()[:3]


def refused(message, tensors=None, here=None, **options):
    """The same call on all ranks, with other arguments `here` on rank 1; then a good one."""
    q, k, v = tensors or (shard(x) for x in GOOD)
    if here is not None and dist.get_rank() == 1:
        options.update(here(q, k, v) if callable(here) else here)
        q, k, v = options.pop("tensors", (q, k, v))
    with pytest.raises(ringlab.Refused) as error:
        ring_attention(q, k, v, **options)
    assert "\n" not in str(error.value) and "--" not in str(error.value)  # nor options of the programs
    assert message in str(error.value), str(error.value)
    assert ring_attention(*(shard(x) for x in GOOD)).isfinite().all()


def test_ranks_that_call_with_other_arguments():
    refused("rank 1 calls with mask full, rank 0 with causal; all ranks of a ring must make the same call",
            here={"mask": "full"})
    refused("rank 1 calls with schedule merge, rank 0 with ring", here={"schedule": "merge"})
    refused("rank 1 calls with dropout 0.25, rank 0 with 0.5", dropout=0.5, dropout_seed=3, here={"dropout": 0.25})
    refused("rank 1 calls with dropout_seed 4, rank 0 with 3", dropout=0.5, dropout_seed=3, here={"dropout_seed": 4})
    refused("rank 1 calls with layout contiguous, rank 0 with zigzag", here={"layout": "contiguous"})
    refused("rank 1 calls with scale 0.5, rank 0 with 0.0", here={"scale": 0.5})
    refused("rank 1 calls with soft_cap 3.0, rank 0 with 0.0", here={"soft_cap": 3.0})
    refused("rank 1 calls with sinks True, rank 0 with False", here={"sinks": torch.zeros(4, dtype=torch.float64)})
    refused("rank 1 calls with mask causal+documents:10x1,54x1, rank 0 with causal+documents:12x1,52x1",
            cu_seqlens=torch.tensor([0, 12, 64]), here={"cu_seqlens": torch.tensor([0, 10, 64])})
    refused("rank 1 calls with batch 2, rank 0 with 1",
            here=lambda *tensors: {"tensors": [torch.cat([x, x]) for x in tensors]})
    refused("rank 1 calls with dtype fp32, rank 0 with fp64",
            here=lambda q, k, v: {"tensors": (q.float(), k.float(), v.float())})
    refused("rank 1 calls with deterministic True, rank 0 with False", here={"deterministic": True})
    refused("rank 1 calls with other arguments than rank 0 (they differ behind what is shown)",
            mask="causal+documents:" + ",".join(["1"] * 50 + ["14"]),
            here={"mask": "causal+documents:" + ",".join(["1"] * 49 + ["2", "13"])})


def test_tokens_that_do_not_divide_are_told_what_python_can_do():
    with pytest.raises(ringlab.Refused) as error:
        shard(torch.zeros(1, 30, 1), layout="zigzag")
    assert "they must be a multiple of 4; pad them to 32" in str(error.value), str(error.value)


@pytest.mark.parametrize("message, change", [
    ("dropout_seed is given without dropout", {"dropout_seed": 3}),
    ("dropout_seed is 'three'; it must be an int of 64 bits or a tensor of one", {"dropout": 0.5, "dropout_seed": "three"}),
    ("deterministic is 1; it must be True or False", {"deterministic": 1}),
    ("mask is None; it must be a name, one of ringlab.masks()", {"mask": None}),
    ("scale is 'small'; it must be a number", {"scale": "small"}),
    ("cu_seqlens is a list; it must be a tensor", {"cu_seqlens": [0, 64]}),
    ("v is a ndarray; it must be a tensor", lambda q, k, v: {"tensors": (q, k, v.numpy())}),
    ("scale is tensor([1., 2.]); it must be a number", {"scale": torch.ones(2).cumsum(0)}),
    ("scale is 0; it must be another number, or None for 1/sqrt(head_dim)", {"scale": 0.0}),
    ("scale requires a gradient, and ringlab has none for it", {"scale": torch.ones(1, requires_grad=True)}),
    ("soft_cap requires a gradient, and ringlab has none for it", {"soft_cap": torch.ones(1, requires_grad=True)}),
    ("dropout_seed is 9223372036854775808; it must be an int of 64 bits", {"dropout": 0.5, "dropout_seed": 2**63}),
    ("dropout_seed is tensor([1.9000]); it must be an int of 64 bits or a tensor of one",
     {"dropout": 0.5, "dropout_seed": torch.tensor([1.9])}),
    ("cu_seqlens is torch.int64 of shape () on cpu; it must be integers (documents + 1,)",
     {"cu_seqlens": torch.tensor(64)}),
    ("cu_seqlens is torch.int64 of shape (1, 2) on cpu; it must be", {"cu_seqlens": torch.tensor([[0, 64]])}),
    ("cu_seqlens is torch.complex64 of shape (2,) on cpu; it must be", {"cu_seqlens": torch.tensor([0, 64 + 0j])}),
    ("cu_seqlens is torch.int64 of shape (2,) on meta; it must be", {"cu_seqlens": torch.tensor([0, 64]).to("meta")}),
    ("cu_seqlens is torch.sparse_coo; it must be a dense tensor", {"cu_seqlens": torch.tensor([0, 64]).to_sparse()}),
    ("sinks hold nan; each must be a number, or -inf", {"sinks": torch.tensor([0, torch.nan, 0, 0])}),
    ("sinks hold inf; each must be a number, or -inf", {"sinks": torch.tensor([0, 0, torch.inf, 0])}),
    ("k is torch.sparse_coo; it must be a dense tensor", lambda q, k, v: {"tensors": (q, k.to_sparse(), v)}),
    ("q is nested; it must be a dense tensor",
     lambda q, k, v: {"tensors": (torch.nested.nested_tensor([q[0], q[0]]), k, v)}),
    ("q has shape (32, 4, 8); without cu_seqlens it must be (batch, tokens, heads, head_dim)",
     lambda *tensors: {"tensors": [x[0] for x in tensors]}),
    ("k is torch.float32, q is torch.float64; they must be equal", lambda q, k, v: {"tensors": (q, k.float(), v)}),
    ("q lies on meta; ringlab computes on CPU and CUDA tensors", lambda q, k, v: {"tensors": (q.to("meta"), k, v)}),
    ("v lies on meta; ringlab computes on CPU and CUDA tensors", lambda q, k, v: {"tensors": (q, k, v.to("meta"))}),
    ("q is torch.float8_e5m2; ringlab computes in float64",
     lambda q, k, v: {"tensors": (q.to(torch.float8_e5m2), k, v)}),
])
def test_an_argument_that_only_one_rank_gets_wrong(message, change):
    refused(message if dist.get_rank() == 1 else f"rank 1 refuses the call: {message}", here=change)


def test_a_file_that_one_rank_cannot_read(monkeypatch, tmp_path):
    def denied(*_):
        raise PermissionError(13, "Permission denied", "lengths.txt")

    (tmp_path / "lengths.txt").write_text("64")
    names = [str(tmp_path / "lengths.txt")]
    dist.broadcast_object_list(names)
    mask = f"documents:@{names[0]}"
    q, k, v = (shard(x) for x in GOOD)
    assert ring_attention(q, k, v, mask=mask).isfinite().all()
    if dist.get_rank() == 1:
        monkeypatch.setattr(_op, "contents_of_files", denied)
    with pytest.raises(ringlab.Refused, match="a file that mask documents:@.* or layout zigzag names cannot be read: .*Perm"):
        ring_attention(q, k, v, mask=mask)
    monkeypatch.undo()
    assert ring_attention(q, k, v, mask=mask).isfinite().all()


def test_shards_that_are_not_what_a_layout_from_a_file_gives(tmp_path):
    # The order that keeps every token where it is; the file's contents count, not its path.
    (tmp_path / "order.txt").write_text("\n".join(map(str, range(64))))
    names = [str(tmp_path / "order.txt")]
    dist.broadcast_object_list(names)
    cut = 30 if dist.get_rank() == 0 else 34
    tensors = [x[:, :cut] for x in GOOD]
    refused(f"rank 0 brings 30 tokens; layout file:{names[0]} gives it 32", tensors, layout=f"file:{names[0]}")


def test_ranks_that_differentiate_different_calls():
    q, k, v = (shard(x).requires_grad_() for x in GOOD)
    calls = [ring_attention(q, k, v, mask=mask) for mask in ("causal", "full")]
    expected = [torch.autograd.grad(o.sum(), (q, k, v), retain_graph=True) for o in calls]
    with pytest.raises(ringlab.Refused, match="rank 1 calls with mask full, rank 0 with causal"):
        torch.autograd.grad(calls[dist.get_rank()].sum(), (q, k, v), retain_graph=True)
    with pytest.raises(ringlab.Refused, match="rank 1 calls with pass forward, rank 0 with backward"):
        if dist.get_rank() == 0:
            torch.autograd.grad(calls[0].sum(), (q, k, v), retain_graph=True)
        else:
            ring_attention(q, k, v)
    for o, want in zip(calls, expected):  # nothing was lost
        assert all(torch.equal(a, b) for a, b in zip(torch.autograd.grad(o.sum(), (q, k, v)), want))


def test_files_that_differ(monkeypatch, tmp_path):
    (tmp_path / "lengths.txt").write_text("30 34")
    names = [str(tmp_path / "lengths.txt")]
    dist.broadcast_object_list(names)
    mask = f"causal+documents:@{names[0]}"
    right = contents_of_files(mask, "zigzag")
    assert right != contents_of_files("causal", "zigzag")
    if dist.get_rank() == 1:
        calls = iter([["another"], right])
        monkeypatch.setattr(_op, "contents_of_files", lambda *_: next(calls))
    refused(f"rank 1 calls with files ['another'], rank 0 with {right}", mask=mask)


def test_shards_of_different_lengths():
    refused("the ranks' shards have 32, 30 tokens; layout zigzag gives all the same",
            here=lambda q, k, v: {"tensors": (q[:, :30], k[:, :30], v[:, :30])})


@pytest.mark.parametrize("message, change", [
    ("q is torch.int64; ringlab computes in float64, float32, bfloat16 or float16", lambda q, k, v: (q.long(), k, v)),
    ("k has 1 x 40 (batch x tokens), q has 1 x 32; they must be equal; a KV cache is not supported",
     lambda q, k, v: (q, torch.cat([k, k[:, :8]], 1), v)),
    ("k has 2 heads, v has 1; they must be equal", lambda q, k, v: (q, k, v[:, :, :1])),
    ("q has head_dim 8, k has 7; they must be equal", lambda q, k, v: (q, k[..., :7], v)),
    ("3 query heads do not share 2 kv heads evenly", lambda q, k, v: (q[:, :, :3], k, v)),
])
def test_tensors_that_are_no_attention(message, change):
    refused(message, change(*(shard(x) for x in GOOD)))


def test_ranks_of_which_one_is_deterministic():
    try:
        torch.use_deterministic_algorithms(dist.get_rank() == 1)
        with pytest.raises(ringlab.Refused, match="rank 1 calls with deterministic True, rank 0 with False; all ranks"):
            ring_attention(*(shard(x) for x in GOOD))
        # Asked for by the argument or by PyTorch's switch is the same.
        ring_attention(*(shard(x) for x in GOOD), deterministic=dist.get_rank() == 0)
    finally:
        torch.use_deterministic_algorithms(False)


def test_names_and_numbers_that_mean_nothing():
    refused("unknown layout 'zigzga', did you mean 'zigzag'", layout="zigzga")
    refused("unknown mask 'casual'", mask="casual")
    refused("unknown schedule 'rign'", schedule="rign")
    refused("the probability of dropout is 1.5; it must be from 0, for none, to below 1", dropout=1.5)
    refused("sinks are torch.float64 of shape (3,) on cpu; they must be a number for each of the 4 query heads",
            sinks=torch.zeros(3, dtype=torch.float64))
    refused("cu_seqlens ends at 70, the ranks' shards have 64 tokens together", cu_seqlens=torch.tensor([0, 70]))
    refused("cu_seqlens begins [3, 64]; it must be 0 and then the ends", cu_seqlens=torch.tensor([3, 64]))
    refused("for problems with a latent", schedule="expanded:ring")
    for call in (positions, lambda tokens, **more: next_token_labels(torch.zeros(tokens), **more)):
        with pytest.raises(ringlab.Refused, match="cu_seqlens is torch.int64 of shape"):
            call(64, cu_seqlens=torch.tensor([[0, 64]]))
        with pytest.raises(ringlab.Refused, match=r"cu_seqlens begins \[0, 200, 100\]"):
            call(64, cu_seqlens=torch.tensor([0, 200, 100], dtype=torch.uint8))
    with pytest.raises(ringlab.Refused, match="cu_seqlens ends at 70, the sequence has 64 tokens"):
        next_token_labels(torch.zeros(64), cu_seqlens=torch.tensor([0, 70]))
    with pytest.raises(TypeError, match="unexpected keyword argument 'dropuot'"):
        ring_attention(*(shard(x) for x in GOOD), dropuot=0.1)
