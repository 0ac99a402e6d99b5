"""o, lse and gradients of a ring of two processes against PyTorch's own attention in fp64."""

import dense
import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F

import ringlab
from ringlab.torch import ring_attention, shard, unshard

# Names that mean nothing by themselves, as a person would type them for two ranks; what takes a latent has no K and V.
ARGUMENTS = {"double-ring": ["double-ring:2", "double-ring:1"], "ulysses": ["ulysses", "ulysses:1"], "expanded": [],
             "merge": ["merge", "merge:tree"], "all-gather": ["all-gather", "all-gather:2"], "seen": ["seen", "seen:3"],
             "striped": ["striped", "striped:4"], "pull": ["pull", "pull:2"], "balanced": ["balanced:4"]}


@pytest.fixture(scope="session")
def permutation(tmp_path_factory):
    """A layout from a file; rank 0's order on every rank."""
    order = torch.randperm(64, generator=torch.Generator().manual_seed(3)).tolist()
    path = tmp_path_factory.mktemp("layout") / "order.txt"
    path.write_text("\n".join(map(str, order)))
    names = [str(path)]
    dist.broadcast_object_list(names)
    return f"file:{names[0]}"


def typed(names):
    return [spec for name in names for spec in ARGUMENTS.get(name, [name])]


def test_the_expected_values_are_those_of_scaled_dot_product_attention():
    q, k, v, dout = dense.random_tensors()
    visible = dense.MASKS["documents"][1](64)
    mine = dense.dense(q, k, v, dout, visible)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    o = F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in leaves), attn_mask=visible, enable_gqa=True)
    gradients = torch.autograd.grad(o, leaves, dout.transpose(1, 2))
    for got, want in zip((mine.o, mine.dq, mine.dk, mine.dv), (o.transpose(1, 2), *gradients)):
        assert (got - want).abs().max() <= 1e-13 * want.abs().max()


@pytest.mark.parametrize("schedule", typed(ringlab.schedules()))
def test_every_schedule_in_every_layout_has_the_gradients_of_dense_attention(schedule, permutation):
    layouts = [permutation if spec == "file" else spec for spec in typed(ringlab.layouts())]
    complaints = {layout: dense.complaint_of_ring(*dense.MASKS["documents"], layout=layout, schedule=schedule)
                  for layout in layouts}
    assert not any(complaints.values()), complaints


def test_every_mask_has_the_gradients_of_dense_attention():
    assert set(ringlab.masks()) == set(dense.MASKS), "give each mask a rule in dense.py"
    complaints = {}
    for spec, visible in dense.MASKS.values():
        for layout, schedule in (("zigzag", "ring"), ("contiguous", "seen"), ("striped", "pass-q")):
            complaints[f"{spec} {layout} {schedule}"] = dense.complaint_of_ring(spec, visible, layout=layout,
                                                                                schedule=schedule)
    assert not any(complaints.values()), complaints


@pytest.mark.parametrize("schedule", ["ring", "bidirectional", "merge", "ulysses"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_narrow_arithmetic_is_off_by_no_more_than_its_roundings(dtype, schedule):
    mask, visible = dense.MASKS["documents"]
    assert dense.complaint_of_ring(mask, visible, dtype=dtype, schedule=schedule) == ""


def test_scale_soft_cap_sinks_batches_and_one_kv_head():
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    mask, visible = dense.MASKS["causal"]
    tensors = dense.random_tensors(batch=2, heads=(4, 1), dims=(6, 11))
    assert dense.complaint_of_ring(mask, visible, tensors=tensors, scale=0.21, soft_cap=1.5, sinks=sinks) == ""
    mask, visible = dense.MASKS["valid"]  # rows that see nothing but the sink
    assert dense.complaint_of_ring(mask, visible, sinks=sinks) == ""


def test_a_sink_of_minus_infinity_is_none():
    tensors = dense.random_tensors()
    sinks = torch.full((4,), -torch.inf, dtype=torch.float64)
    for name in ("causal", "valid"):  # with rows that see nothing, too
        with_sinks, without = (dense.ring_results(*tensors, mask=dense.MASKS[name][0], layout="zigzag", sinks=given)
                               for given in (sinks, None))
        assert all(torch.equal(getattr(with_sinks, x), getattr(without, x)) for x in ("o", "lse", "dq", "dk", "dv"))
        assert torch.equal(with_sinks.dsinks, torch.zeros_like(sinks))


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
@pytest.mark.parametrize("name", dense.MASKS)
def test_nothing_depends_on_what_it_does_not_see(name, dtype):
    mask, visible = dense.MASKS[name]
    seen = visible(64)
    tensors = dense.random_tensors(dtype=dtype)
    options = {"sinks": torch.zeros(4), "soft_cap": 3.0}
    for token, wrong in ((11, torch.nan), (40, torch.inf), (63, torch.nan)):
        poisoned = [x.clone() for x in tensors]
        for x in poisoned:
            x[:, token] = wrong
        changed_rows = seen[:, token].clone()
        changed_rows[token] |= seen[token].any()
        changed_keys = seen[changed_rows].any(0)
        for layout, schedule in (("zigzag", "ring"), ("striped", "ulysses"), ("contiguous", "merge")):
            clean, found = (dense.ring_results(*x, mask=mask, layout=layout, schedule=schedule, **options)
                            for x in (tensors, poisoned))
            for result, changed in (("o", changed_rows), ("lse", changed_rows), ("dq", changed_rows),
                                    ("dk", changed_keys), ("dv", changed_keys)):
                a, b = (getattr(x, result)[:, ~changed] for x in (clean, found))
                assert torch.equal(a, b), (result, layout, token)
            if not changed_rows.any():
                assert torch.equal(clean.dsinks, found.dsinks)


def test_a_negated_view_is_read_as_what_it_stands_for():
    tensors = [shard(x) for x in dense.random_tensors()]
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)

    def results(q, k, v, dout, sinks):
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        o = ring_attention(*leaves, sinks=sinks)
        return o.detach(), *torch.autograd.grad(o, leaves, dout)

    views = [torch.complex(torch.zeros_like(x), -x).conj().imag for x in (*tensors, sinks)]
    assert all(x.is_neg() for x in views)
    assert all(torch.equal(a, b) for a, b in zip(results(*tensors, sinks), results(*views)))
    plain = [x.detach() for x in tensors[:3]]
    ring_attention(*plain)  # a call of this kind is known now
    assert torch.equal(ring_attention(views[0], *plain[1:]), ring_attention(*plain))


def test_any_strides_are_taken():
    q, k, v, _ = (shard(x) for x in dense.random_tensors(batch=2))
    plain = ring_attention(q, k, v)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    strided.append(torch.stack([v, v], -1)[..., 0])
    assert not any(x.is_contiguous() for x in strided)
    assert torch.equal(ring_attention(*strided), plain)
    expanded = ring_attention(q, k[:, :, :1].expand_as(k), v)
    assert torch.equal(expanded, ring_attention(q, k[:, :, :1].expand_as(k).contiguous(), v))


def test_packed_tensors_with_cu_seqlens_are_documents_and_what_is_behind_is_padding():
    q, k, v, dout = dense.random_tensors()
    cu_seqlens = torch.tensor([0, 1, 14, 21, 50], dtype=torch.int32)
    end = dense.parts([1, 13, 7, 29, 14])
    visible = dense._visible(lambda row, key: (key <= row) & (end[row] == end[key]), lambda tokens: end < 4)(64)
    expected = dense.dense(q, k, v, dout, visible)
    where = {"mask": "causal", "layout": "balanced:4", "cu_seqlens": cu_seqlens}
    leaves = [shard(x, **where)[0].requires_grad_() for x in (q, k, v)]
    o = ring_attention(*leaves, **where)
    assert o.shape == (32, 4, 5)
    gradients = torch.autograd.grad(o, leaves, shard(dout, **where)[0])
    allowed = dense.bounds(q, k, v, dout, expected, "causal+documents:1,13,7,29,14+valid:0-50", layout="balanced:4")
    measured = {name: unshard(x[None], **where) for name, x in zip(("o", "dq", "dk", "dv"), (o.detach(), *gradients))}
    measured["lse"], measured["dsinks"] = expected.lse, None
    assert dense.complaint(dense.SimpleNamespace(**measured), expected, allowed) == ""
    assert torch.equal(measured["o"][:, 50:], torch.zeros_like(measured["o"][:, 50:]))


def kept_pairs(tokens, **options):
    """What dropout multiplies each p by, (1, heads, rows, keys): read off o where V is the identity."""
    q, k, _, _ = dense.random_tensors(tokens)
    eye = torch.eye(tokens, dtype=torch.float64)[None, :, None].expand(1, tokens, 2, tokens)
    dropped, plain = (unshard(ring_attention(*(shard(x) for x in (q, k, eye)), **more)).transpose(1, 2)
                      for more in (options, {}))
    return torch.where(plain > 0, dropped / plain, 0)


def test_dropout_drops_and_scales_pairs_and_its_gradients_are_those_of_what_it_kept():
    options = {"dropout": 0.25, "dropout_seed": 7}
    kept = kept_pairs(64, **options)
    visible = dense.MASKS["causal"][1](64)
    drawn = kept[:, :, visible]
    assert ((drawn < 1e-12) | ((drawn - 1 / 0.75).abs() < 1e-9)).all()
    rate = (drawn < 1e-12).double().mean()
    assert abs(rate - 0.25) < 5 * (0.25 * 0.75 / drawn.numel()) ** 0.5  # five standard deviations
    kept = (kept > 0.5).double() / 0.75
    tensors = dense.random_tensors()
    expected = dense.dense(*tensors, visible, kept=kept)
    allowed = dense.bounds(*tensors, expected, "causal", **options)
    for layout, schedule in (("zigzag", "ring"), ("striped", "ulysses"), ("contiguous", "merge")):
        measured = dense.ring_results(*tensors, mask="causal", layout=layout, schedule=schedule, **options)
        assert dense.complaint(measured, expected, allowed) == "", (layout, schedule)


def test_a_drawn_seed_is_rank_0s_and_another_call_has_another():
    q, k, v, _ = (shard(x) for x in dense.random_tensors())
    torch.manual_seed(5 + dist.get_rank())
    first, second = (ring_attention(q, k, v, dropout=0.5) for _ in range(2))
    torch.manual_seed(5)
    seed = int(torch.randint(2**62, (1,)))
    assert torch.equal(first, ring_attention(q, k, v, dropout=0.5, dropout_seed=seed))
    assert not torch.equal(first, second)


def test_a_ring_of_the_process_alone_needs_no_group():
    q, k, v, dout = dense.random_tensors()
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    mask, visible = dense.MASKS["causal"]
    assert torch.allclose(ring_attention(q, k, v, group=alone), dense.dense(q, k, v, dout, visible(64)).o, rtol=1e-12,
                          atol=1e-14)
