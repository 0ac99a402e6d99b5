"""What PyTorch does with the call: order, checkpointing, autocast, compiling, and what shards belong to it."""

import random
import threading

import dense
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import ringlab
from ringlab.torch import (_op, _ring, loss_weights, next_token_labels, padded_tokens, positions, ring_attention,
                           shard, unshard)


def leaves(dtype=torch.float64, **where):
    return [shard(x, **where).requires_grad_() for x in dense.random_tensors(dtype=dtype)[:3]]


def test_several_calls_whose_backward_passes_come_in_reverse():
    q, k, v, dout = dense.random_tensors(dims=(8, 8))
    options = [{"layout": "zigzag", "schedule": schedule} for schedule in ("ring", "bidirectional", "merge")]

    def stack(q, attend):
        for option in options:
            q = q + attend(q, option)
        return q

    own = [shard(x).requires_grad_() for x in (q, k, v)]
    gradients = torch.autograd.grad(stack(own[0], lambda x, option: ring_attention(x, own[1], own[2], **option)), own,
                                    shard(dout))
    whole = [x.clone().requires_grad_() for x in (q, k, v)]
    visible = dense.MASKS["causal"][1](64)

    def sdpa(x, _):
        return torch.nn.functional.scaled_dot_product_attention(
            *(y.transpose(1, 2) for y in (x, *whole[1:])), attn_mask=visible, enable_gqa=True).transpose(1, 2)

    expected = torch.autograd.grad(stack(whole[0], sdpa), whole, dout)
    # Three layers, each of which may add the 1e-13 of tests/reference/cpu_gate.hpp, and the growth of the stream.
    for got, want in zip(gradients, expected):
        assert (unshard(got) - want).abs().max() <= 1e-12 * want.abs().max()


def test_checkpointing_replays_the_same_dropout():
    q, k, v = leaves()

    def attend(q, k, v):
        return ring_attention(q, k, v, dropout=0.5).square().sum()

    results = []
    for run in (attend, lambda *x: checkpoint(attend, *x, use_reentrant=False),
                lambda *x: checkpoint(attend, *x, use_reentrant=True)):
        torch.manual_seed(11)
        loss = run(q, k, v)
        torch.manual_seed(99)  # what is drawn meanwhile is none of its business
        loss.backward()
        results.append([loss.detach(), *(x.grad for x in (q, k, v))])
        q.grad = k.grad = v.grad = None
    for other in results[1:]:
        assert all(torch.equal(a, b) for a, b in zip(results[0], other))


def test_nothing_is_kept_without_gradients_and_lse_has_none():
    q, k, v = leaves()
    with torch.no_grad():
        assert ring_attention(q, k, v).grad_fn is None
    o, lse = ring_attention(q, k, v, return_lse=True)
    assert o.requires_grad and not lse.requires_grad and lse.shape == q.shape[:3] and lse.dtype == torch.float64


def test_what_autograd_keeps_is_five_tensors_and_in_bf16_o_in_float32():
    for dtype, kept_bytes in ((torch.float64, 8), (torch.bfloat16, 4)):
        sizes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.nbytes) or x, lambda x: x):
            q, k, v = leaves(dtype)
            sizes.clear()
            o = ring_attention(q, k, v)
        lse_bytes = o[..., 0].numel() * (8 if dtype == torch.float64 else 4)
        assert sum(sizes) == q.nbytes + k.nbytes + v.nbytes + o.numel() * kept_bytes + lse_bytes


def test_the_backward_pass_in_bf16_takes_o_as_it_was_before_it_was_rounded():
    q, k, v = leaves(torch.bfloat16)
    named = "causal", "zigzag", "ring", dist.group.WORLD.group_name, 0.0, 0.0, 0.0, False, False
    seed = torch.zeros(1, dtype=torch.int64)
    o, lse, exact, _ = _op.attention(q.detach(), k.detach(), v.detach(), None, None, seed, *named)
    assert torch.equal(exact.bfloat16(), o) and not torch.equal(exact, o.float())
    dout = shard(dense.random_tensors(dtype=torch.bfloat16)[3])
    dq, _, _ = torch.autograd.grad(ring_attention(q, k, v), (q, k, v), dout)
    of_exact, of_rounded = (_op.attention_backward(dout, q.detach(), k.detach(), v.detach(), None, None, seed, before,
                                                   lse, *named)[0] for before in (exact, o.float()))
    assert torch.equal(dq, of_exact) and not torch.equal(dq, of_rounded)


def test_ranks_tell_each_other_bytes_of_any_length():
    ring = _ring.ring_of(_ring.group_name(None))
    for length in (0, 5, 500):  # the last does not fit into what is told in one round
        assert ring.all_gather(b"x" * (length * dist.get_rank())) == [b"", b"x" * length]


def test_second_derivatives_are_refused_in_one_line():
    q, k, v = leaves()
    gradient, = torch.autograd.grad(ring_attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="^ring_attention has no second derivative: call backward"):
        gradient.sum().backward()


def test_autocast_narrows_float32_and_leaves_float64():
    q, k, v = (x.float() for x in leaves())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ring_attention(q, k, v).dtype == torch.bfloat16
        assert ring_attention(q.double(), k.double(), v.double()).dtype == torch.float64


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_compiled_without_a_break_and_not_again_for_another_packing(dtype):
    def attend(q, k, v, cu_seqlens, seed):
        return ring_attention(q * 2, k, v, cu_seqlens=cu_seqlens, dropout=0.25, dropout_seed=seed, soft_cap=3.0) + 1

    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager", dynamic=False)
    counts = []
    for ends in ([20, 40, 64], [1, 63, 64], [30, 31, 60]):
        arguments = torch.tensor([0, *ends], dtype=torch.int32), torch.tensor([ends[0]])
        results = []
        for function in (attend, compiled):
            q, k, v = leaves(dtype)
            o = function(q, k, v, *arguments)
            results.append((o, *torch.autograd.grad(o.float().square().sum(), (q, k, v))))
        assert all(torch.equal(a, b) for a, b in zip(*results))
        counts.append(torch._dynamo.utils.counters["stats"]["unique_graphs"])
    assert counts[0] == 1 and len(set(counts)) == 1, counts


def test_shards_and_positions_are_those_of_the_layout_and_come_together_again():
    x = torch.arange(128.0).reshape(2, 64)
    for layout in ("contiguous", "zigzag", "striped:4", "balanced:4"):
        where = {"layout": layout, "mask": "causal" if layout == "balanced:4" else None}
        assert torch.equal(shard(x, **where), x[:, positions(64, **where)])
        assert torch.equal(unshard(shard(x, **where), **where), x)
    for layout in ("balanced:4", "planned"):
        for more in ({}, {"cu_seqlens": torch.tensor([0, 10, 64])}):
            for call in (lambda **where: positions(64, **where), lambda **where: shard(x, **where),
                         lambda **where: unshard(x[:, :32], **where)):
                with pytest.raises(ringlab.Refused, match=f"layout {layout} follows the mask, and none is given"):
                    call(layout=layout, **more)
    rank = dist.get_rank()
    chunk = torch.arange(16)
    assert torch.equal(positions(64), torch.cat([chunk + 16 * rank, chunk + 16 * (3 - rank)]))
    cu_seqlens = torch.tensor([0, 10, 64])
    in_document = torch.cat([torch.arange(10), torch.arange(54)])
    assert torch.equal(positions(64, cu_seqlens=cu_seqlens, documents=True), in_document[positions(64)])
    assert padded_tokens(61) == 64 and shard(x[:, :61], pad=-1.0).shape == (2, 32)


def test_unshard_is_differentiated_by_the_sum_over_ranks():
    x = torch.ones(1, 32, requires_grad=True)
    weights = torch.arange(64.0) * (1 + dist.get_rank())
    (unshard(x) * weights).sum().backward()
    assert torch.equal(x.grad, (torch.arange(64.0) * 3)[positions(64)][None])


def test_labels_are_shifted_over_the_whole_sequence_and_end_with_their_document():
    tokens, expected = torch.arange(8), [1, 2, -100, 4, 5, 6, -100, -100]
    assert next_token_labels(tokens[None], cu_seqlens=torch.tensor([0, 3, 7])).tolist() == [expected]
    assert next_token_labels(tokens, cu_seqlens=torch.tensor([0, 3, 7])).tolist() == expected


def test_weighted_losses_of_a_ring_add_up_to_the_mean_and_replicas_are_averaged():
    labels = torch.arange(64).where(torch.arange(64) % 3 > 0, -100)[None]
    losses = torch.arange(64.0)[None] ** 2
    mean = losses[labels != -100].mean()
    for gradients, factor in (("sum", 1.0), ("mean", 0.5)):
        loss = (shard(losses) * loss_weights(shard(labels), ring_gradients=gradients)).sum()
        dist.all_reduce(loss)
        assert abs(loss * factor - mean) < 1e-5 * mean
    # Two rings of one process each, whose sequences have different lengths.
    alone = [dist.new_group([rank]) for rank in range(2)][dist.get_rank()]
    own = labels.clone()
    own[:, 16 + 32 * dist.get_rank():] = -100
    loss = (losses * loss_weights(own, group=alone, replicas=dist.group.WORLD)).sum()
    dist.all_reduce(loss)
    counted = [losses[0, :end][labels[0, :end] != -100] for end in (16, 48)]
    assert abs(loss / 2 - torch.cat(counted).mean()) < 1e-5 * loss


def test_a_mesh_dimension_is_a_group():
    mesh = dist.device_mesh.init_device_mesh("cpu", (1, 2), mesh_dim_names=("dp", "cp"))
    q, k, v = leaves()
    assert torch.equal(ring_attention(q, k, v, group=mesh["cp"]), ring_attention(q, k, v))
    with pytest.raises(ringlab.Refused, match=r"the mesh has 2 dimensions \('dp', 'cp'\); a ring is one of them"):
        ring_attention(q, k, v, group=mesh)


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "pull", "merge", "ulysses"])
def test_repeats_have_the_same_bits_whatever_the_messages_order(schedule, monkeypatch):
    # CPU ranks add in the order of the schedule. Messages that are told of in another order must not change it.
    draw = random.Random(dist.get_rank())
    wait_for = _ring._waiters.wait_for

    def late(*message):
        threading.Timer(draw.uniform(0, 0.01), wait_for, message).start()

    found = []
    for deterministic in (False, True):
        q, k, v = leaves(torch.float32)
        o = ring_attention(q, k, v, schedule=schedule, deterministic=deterministic)
        found.append([o, *torch.autograd.grad(o.square().sum(), (q, k, v))])
        monkeypatch.setattr(_ring._waiters, "wait_for", late)
    assert all(torch.equal(a, b) for a, b in zip(*found))


def test_the_profiler_has_a_range_of_each_pass_with_names_and_sizes():
    q, k, v = leaves(torch.bfloat16)
    cu_seqlens = torch.tensor([0, 20, 64])
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        ring_attention(q, k, v, schedule="merge").sum().backward()
        ring_attention(q, k, v, cu_seqlens=cu_seqlens, mask="causal+window:5000,0", layout="striped:4")
    ranges = [event for event in profile.events() if event.name.startswith("ringlab ")]
    sizes = "P=2, q 1x32x4x8, k 1x32x2x8, v 1x32x2x5, bfloat16"
    assert [event.name for event in ranges] == [
        f"ringlab forward: causal zigzag merge, {sizes}", f"ringlab backward: causal zigzag merge, {sizes}",
        f"ringlab forward: causal+window:5000,0+documents striped:4 ring, {sizes}"]
    messages = [event for event in profile.events() if event.name.startswith("gloo:")]
    for which in ranges:
        span = which.time_range
        assert any(span.start <= message.time_range.start <= span.end for message in messages), which.name


def test_a_call_like_an_earlier_one_means_what_it_says():
    """Its arguments are not looked at again; what may be different all the same is."""
    q, k, v = (x.detach() for x in leaves(torch.float32))
    scale = torch.tensor(0.5)

    def attend(**more):
        return ring_attention(q, k, v, **more)

    first, scaled = attend(), attend(scale=scale)
    assert torch.equal(attend(), first)
    assert attend().dtype == torch.float32
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert attend().dtype == torch.bfloat16
    assert torch.equal(attend(scale=scale.mul_(2)), attend(scale=1.0)) and not torch.equal(attend(scale=scale), scaled)
    assert attend(return_lse=True)[1].shape == q.shape[:3]
    assert ring_attention(q.clone().requires_grad_(), k, v).requires_grad and not attend().requires_grad
    with pytest.raises(ringlab.Refused, match="mask is \\['causal'\\]"):
        attend(mask=["causal"])
    with pytest.raises(ringlab.Refused, match="rank 1 calls with mask full, rank 0 with causal"):
        attend(mask="full" if dist.get_rank() == 1 else "causal")
    with pytest.raises(ringlab.Refused, match="v is a NoneType"):
        ring_attention(q, k, None)
    with pytest.raises(ringlab.Refused, match="v is torch.float64, q is torch.float32"):
        ring_attention(q, k, v.double())
    assert torch.equal(attend(), first)
