"""Rings beside replicas and split heads, on meshes of all processes: gradients of a small model, reduced in every way
that gradients.md names, against one process that has all sequences. With two processes, and with four."""

import os

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import ringlab
from ringlab.torch import loss_weights, next_token_labels, ring_attention, shard

TOKENS, VOCABULARY, WIDTH, HEADS, KV_HEADS, HEAD_DIM = 32, 16, 24, 4, 2, 6
NAMES = ("dp", "cp", "tp")
# (replicas, ranks of a ring, processes that split the heads)
MESHES = {2: [(2, 1, 1), (1, 2, 1), (1, 1, 2)], 4: [(2, 2, 1), (1, 2, 2)]}


@pytest.fixture(autouse=True)
def double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(params=MESHES.get(int(os.environ.get("WORLD_SIZE", 2)), []), ids=str)
def mesh(request):
    return init_device_mesh("cpu", request.param, mesh_dim_names=NAMES)


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = torch.nn.RMSNorm(WIDTH)
        self.q = torch.nn.Linear(WIDTH, HEADS * HEAD_DIM, bias=False)
        self.k = torch.nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.v = torch.nn.Linear(WIDTH, KV_HEADS * HEAD_DIM, bias=False)
        self.o = torch.nn.Linear(HEADS * HEAD_DIM, WIDTH, bias=False)

    def forward(self, x, attend):
        normed = self.norm(x)
        q, k, v = (part(normed).unflatten(-1, (-1, HEAD_DIM)) for part in (self.q, self.k, self.v))
        return x + self.o(attend(q, k, v).flatten(2))


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.embedding = torch.nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = torch.nn.ModuleList([Block(), Block()])
        self.head = torch.nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids, attend):
        x = self.embedding(ids)
        for block in self.blocks:
            x = block(x, attend)
        return self.head(x)


def losses_of(logits, labels):
    return F.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")


def sequence(replica):
    """Ids and labels of a replica; each has another number of labels that count."""
    ids = torch.randint(VOCABULARY, (1, TOKENS), generator=torch.Generator().manual_seed(replica))
    labels = next_token_labels(ids)
    labels[:, TOKENS - 9 * replica - 3:] = -100
    return ids, labels


def expected_gradients(replicas):
    """Of the mean over all tokens of all replicas, by PyTorch's own attention over whole sequences."""
    def attend(q, k, v):
        return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)), is_causal=True,
                                              enable_gqa=True).transpose(1, 2)

    model = Model()
    pairs = [sequence(replica) for replica in range(replicas)]
    total = sum(losses_of(model(ids, attend), labels).sum() for ids, labels in pairs)
    (total / sum((labels != -100).sum() for _, labels in pairs)).backward()
    return {name: parameter.grad for name, parameter in model.named_parameters()}


# ---- The ways in which gradients are reduced: each prepares a model, and returns the rest of the work ----


def by_hand(model, mesh):
    def finish():
        for parameter in model.parameters():
            dist.all_reduce(local(parameter.grad), group=mesh["cp"].get_group())
            dist.all_reduce(local(parameter.grad), group=mesh["dp"].get_group())
            local(parameter.grad).div_(mesh["dp"].size())
    return model, finish


def data_parallel(model, mesh):
    return DistributedDataParallel(model, process_group=everyone(mesh).get_group()), lambda: None


def sharded(model, mesh, over):
    for block in model.blocks:
        fully_shard(block, mesh=over)
    fully_shard(model, mesh=over)
    return model, lambda: None


def sharded_over_replicas(model, mesh):
    model, _ = sharded(model, mesh, mesh["dp"])

    def finish():
        for parameter in model.parameters():
            dist.all_reduce(local(parameter.grad), group=mesh["cp"].get_group())
    return model, finish


def added_over_all(model, mesh):
    def finish():
        for parameter in model.parameters():
            dist.all_reduce(local(parameter.grad), group=everyone(mesh).get_group())
    return model, finish


def summed(mesh):
    return {"group": mesh["cp"], "replicas": mesh["dp"]}


def averaged(mesh):
    return {"group": mesh["cp"], "replicas": mesh["dp"], "ring_gradients": "mean"}


# With the arguments of loss_weights(), as in the table of gradients.md.
WAYS = {
    "by hand": (by_hand, summed),
    "FSDP over replicas": (sharded_over_replicas, summed),
    "DDP over all": (data_parallel, averaged),
    "FSDP over all": (lambda model, mesh: sharded(model, mesh, everyone(mesh)), averaged),
    "HSDP, sharded over the ring": (lambda model, mesh: sharded(model, mesh, mesh["dp", "cp"]), averaged),
    "added over all": (added_over_all, lambda mesh: {"group": everyone(mesh)}),
}


def everyone(mesh):
    """Rings and replicas as one dimension."""
    return mesh["dp", "cp"]._flatten("dp_cp")


def local(x):
    return x.to_local() if isinstance(x, DTensor) else x


def whole(x):
    return x.full_tensor() if isinstance(x, DTensor) else x


def split_heads(model, mesh, local_output):
    for block in model.blocks:
        columns = {name: ColwiseParallel(use_local_output=local_output) for name in ("q", "k", "v")}
        parallelize_module(block, mesh["tp"], {**columns, "o": RowwiseParallel()})


def gradients_on(mesh, way, local_output=True):
    prepare, arguments = WAYS[way]
    model = Model()
    if mesh["tp"].size() > 1:
        split_heads(model, mesh, local_output)
    prepared, finish = prepare(model, mesh)
    ids, labels = (shard(x, group=mesh["cp"]) for x in sequence(mesh["dp"].get_local_rank()))
    logits = prepared(ids, lambda q, k, v: ring_attention(q, k, v, group=mesh["cp"]))
    (loss_weights(labels, **arguments(mesh)) * losses_of(logits, labels)).sum().backward()
    finish()
    return {name: whole(parameter.grad) for name, parameter in model.named_parameters()}


def check(got, expected):
    # Two layers in fp64 with sums of up to 64 terms in another order: some 64 * 1.1e-16, amplified by norms.
    assert set(got) == set(expected)
    for name, want in expected.items():
        assert (got[name] - want).abs().max() <= 1e-12 * want.abs().max(), name


@pytest.mark.parametrize("way", WAYS)
def test_gradients_are_those_of_one_process(mesh, way):
    if way == "DDP over all" and mesh["tp"].size() > 1:
        pytest.skip("DistributedDataParallel takes no parameters that tensor parallelism has split")
    check(gradients_on(mesh, way), expected_gradients(mesh["dp"].size()))


def test_heads_as_dtensors(mesh):
    if mesh["tp"].size() == 1:
        pytest.skip("no heads are split on this mesh")
    check(gradients_on(mesh, "FSDP over all", local_output=False), expected_gradients(mesh["dp"].size()))


def test_dtensors_with_sinks_and_lse_are_the_heads_of_all(mesh):
    torch.manual_seed(3)
    q, k, v = (torch.randn(1, TOKENS, heads, HEAD_DIM) for heads in (HEADS, KV_HEADS, KV_HEADS))
    sinks = torch.randn(HEADS)
    alone = ring_attention(*(shard(x, group=mesh["cp"]) for x in (q, k, v)), sinks=sinks, group=mesh["cp"],
                           return_lse=True)
    split = [distribute_tensor(shard(x, group=mesh["cp"]), mesh["tp"], [Shard(2)]) for x in (q, k, v)]
    results = ring_attention(*split, sinks=distribute_tensor(sinks, mesh["tp"], [Shard(0)]), group=mesh["cp"],
                             return_lse=True)
    for result, want in zip(results, alone):
        assert result.placements == (Shard(2),) and torch.equal(result.full_tensor(), want)


def test_dtensors_that_are_split_by_anything_but_heads_are_refused():
    size = dist.get_world_size()
    mesh = init_device_mesh("cpu", (1, size), mesh_dim_names=("cp", "tp"))
    q, k, v = (torch.randn(1, TOKENS, 4, HEAD_DIM) for _ in range(3))
    by_heads, by_tokens, everywhere = ([distribute_tensor(x, mesh["tp"], [how]) for x in (q, k, v)]
                                       for how in (Shard(2), Shard(1), Replicate()))
    for message, tensors, group in (
            ("q is a DTensor with placements (Shard(dim=1),)", by_tokens, mesh["cp"]),
            ("k is a DTensor with placements (Replicate(),)", [by_heads[0], *everywhere[1:]], mesh["cp"]),
            ("q is a DTensor and k is not; give all as DTensors", [by_heads[0], k, v], mesh["cp"]),
            (f"q is a DTensor over a mesh that has ranks {list(range(size))} of the ring", by_heads, None)):
        with pytest.raises(ringlab.Refused) as error:
            ring_attention(*tensors, group=group)
        assert message in str(error.value) and "\n" not in str(error.value), str(error.value)


def test_a_group_that_this_process_is_not_in_is_refused():
    other = dist.new_group([0])
    q = torch.randn(1, TOKENS, 4, HEAD_DIM)
    if dist.get_rank() == 0:
        assert ring_attention(q, q, q, group=other).shape == q.shape
    else:
        with pytest.raises(ringlab.Refused, match="^group is .*; it must be a ProcessGroup that this process is in"):
            ring_attention(q, q, q, group=other)
