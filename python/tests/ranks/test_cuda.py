"""Rings of CUDA tensors against dense attention in fp64. Ranks share a GPU where there are fewer GPUs than ranks."""

import os
import pathlib
import threading

import dense
import pytest
import torch
import torch.distributed as dist

import ringlab
from ringlab import _cuda
from ringlab.torch import connect, held_memory, ring_attention, shard

if not torch.cuda.is_available():
    pytest.skip("no CUDA device is here", allow_module_level=True)
try:
    _cuda.library()
except ringlab.Refused as error:
    pytest.skip(str(error), allow_module_level=True)

DEVICE = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
RANKS = int(os.environ["WORLD_SIZE"])
# For rings of any size; what takes an argument that has to divide it is left out, and what takes a latent.
SCHEDULES = sorted(set(ringlab.schedules()) - {"double-ring", "ulysses", "expanded"})
SCHEDULES += ["double-ring:2", "ulysses"] if RANKS == 2 else []


def complaint(spec, visible, dtype=torch.bfloat16, tokens=64, dims=(16, 16), heads=(4, 2), batch=1, **options):
    tensors = dense.random_tensors(tokens, batch, dtype, heads, dims)
    return dense.complaint_of_ring(spec, visible, dtype, tensors=tensors, device=DEVICE, **options)


def causal(tokens):
    return dense.MASKS["causal"][1](tokens)


def leaves(tokens=64, batch=1, dims=(16, 16), **where):
    tensors = dense.random_tensors(tokens, batch, torch.bfloat16, dims=dims)
    return [shard(x, **where).to(DEVICE).requires_grad_() for x in tensors[:3]]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_every_schedule_has_the_gradients_of_dense_attention(schedule):
    complaints = {layout: complaint(*dense.MASKS["documents"], dtype=torch.float16, layout=layout, schedule=schedule)
                  for layout in ("zigzag", "balanced:4")}
    assert not any(complaints.values()), complaints


def test_every_mask_has_the_gradients_of_dense_attention():
    complaints = {}
    for spec, visible in dense.MASKS.values():
        for layout, schedule in (("zigzag", "ring"), ("contiguous", "seen"), ("striped", "pass-q")):
            complaints[f"{spec} {layout} {schedule}"] = complaint(spec, visible, layout=layout, schedule=schedule)
    assert not any(complaints.values()), complaints


@pytest.mark.parametrize("dims", [(64, 64), (128, 128), (192, 128), (256, 256), (8, 5)])
@pytest.mark.parametrize("schedule", ["ring", "pull"])
def test_heads_of_every_size(dims, schedule):
    assert complaint("causal", causal, tokens=1024, dims=dims, schedule=schedule) == ""


def test_scale_soft_cap_sinks_batches_and_one_kv_head():
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0])
    assert complaint("causal", causal, batch=2, heads=(4, 1), dims=(24, 40), scale=0.21, soft_cap=1.5, sinks=sinks) == ""
    assert complaint(*dense.MASKS["valid"], sinks=sinks, schedule="pass-q") == ""


def test_dropout_drops_what_it_drops_on_the_cpu():
    options = {"mask": "causal", "dropout": 0.25, "dropout_seed": 7}
    tensors = dense.random_tensors(dtype=torch.bfloat16, dims=(16, 16))
    expected = dense.ring_results(*(x.double() for x in tensors), **options)
    allowed = dense.bounds(*tensors, expected, **options)
    assert dense.complaint(dense.ring_results(*tensors, device=DEVICE, **options), expected, allowed,
                           torch.bfloat16) == ""


def test_any_strides_and_any_stream_are_taken():
    q, k, v = (x.detach() for x in leaves(batch=2))
    plain = ring_attention(q, k, v)
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k)]
    strided.append(torch.stack([v, v], -1)[..., 0])
    assert not any(x.is_contiguous() for x in strided)
    assert torch.equal(ring_attention(*strided), plain)
    packed = torch.cat([q, k, v], 2)  # as of one projection; views of it begin where heads do
    assert torch.equal(ring_attention(packed[:, :, :4], packed[:, :, 4:6], packed[:, :, 6:]), plain)
    with torch.cuda.stream(torch.cuda.Stream(DEVICE)):
        torch.cuda._sleep(20_000_000)  # some 10 ms in which what is read is not there yet
        late = [x * 1 for x in (q, k, v)]
        o = ring_attention(*late)
        for x in late:
            x.zero_()
        assert torch.equal(o, plain)


def test_packed_documents_and_repeats_that_are_bit_identical():
    segment = dense.parts([100, 412, 512])
    visible = dense._visible(lambda row, key: (key <= row) & (segment[row] == segment[key]))
    assert complaint("causal+documents:100,412,512", visible, tokens=1024, dims=(128, 128), layout="balanced:4") == ""
    cu_seqlens = torch.tensor([0, 1, 14, 21, 64], dtype=torch.int32)
    found = []
    torch.use_deterministic_algorithms(True)
    try:
        for _ in range(2):
            q, k, v = (x.detach()[0].requires_grad_() for x in leaves(cu_seqlens=cu_seqlens))
            o = ring_attention(q, k, v, cu_seqlens=cu_seqlens)
            found.append([o, *torch.autograd.grad(o.float().square().sum(), (q, k, v))])
    finally:
        torch.use_deterministic_algorithms(False)
    assert all(torch.equal(a, b) for a, b in zip(*found))


@pytest.mark.parametrize("schedule", ["ring", "pass-q", "merge", "joined-ring"])
def test_padding_may_hold_anything_and_a_sink_may_be_minus_infinity(schedule):
    # Padding at the end of every shard, and in the middle of one.
    after = {"mask": "causal", "cu_seqlens": torch.tensor([0, 300, 710])}
    cases = [(layout, tokens, dims, options) for layout in ("zigzag", "contiguous", "striped", "balanced:4")
             for tokens, dims, options in ((1024, (128, 128), after), (1024, (16, 16), after),
                                           (64, (64, 64), {"mask": dense.MASKS["valid"][0]}),
                                           (64, (64, 64), {"mask": dense.MASKS["padded-segments"][0]}))]
    for layout, tokens, dims, options in cases:
        if "cu_seqlens" in options:
            padding = torch.arange(tokens) >= 710
        else:
            padding = ~{spec: visible for spec, visible in dense.MASKS.values()}[options["mask"]](tokens).any(1)
        where = {"layout": layout, **options}
        found = []
        for anything, sinks in ((0.5, None), (torch.nan, None), (torch.inf, torch.full((4,), -torch.inf))):
            tensors = dense.random_tensors(tokens, 1, torch.bfloat16, dims=dims)
            for x in tensors:
                x[:, padding] = anything
            q, k, v, dout = (shard(x, **where).to(DEVICE) for x in tensors)
            inputs = [x.requires_grad_() for x in (q, k, v)]
            own_sinks = None if sinks is None else sinks.to(DEVICE)
            o, lse = ring_attention(*inputs, schedule=schedule, sinks=own_sinks, deterministic=True, return_lse=True,
                                    **where)
            found.append([o.detach(), lse, *torch.autograd.grad(o, inputs, dout)])
        assert not any(x.isnan().any() for x in found[0]), where
        assert all(map(torch.equal, found[0], found[1])), where
        assert all(map(torch.equal, found[0], found[2])), where


def results(q, k, v, **options):
    o = ring_attention(q, k, v, deterministic=True, **options)
    return [o.detach(), *torch.autograd.grad(o.float().square().sum(), (q, k, v))]


# Plans of a ring use the same memory in turn. No host waits for a device in between, and one rank's device is behind.
@pytest.mark.parametrize("schedules", [("ring", "pull"), ("pull", "pass-q"), ("seen", "joined-ring")])
def test_plans_that_take_turns_give_what_each_gives_alone(schedules):
    packings = [torch.tensor([0, cut, 1024]) for cut in (100, 640, 641)]
    calls = [{"cu_seqlens": packing, "schedule": schedule} for packing in packings for schedule in schedules]
    tensors = leaves(tokens=1024, dims=(64, 64))
    alone = []
    for call in calls:
        alone.append(results(*tensors, **call))
        torch.cuda.synchronize(DEVICE)
        dist.barrier()
    for late in range(RANKS):
        found = []
        for i in range(4 * len(calls)):
            if dist.get_rank() == late and i % 3 == 0:
                torch.cuda._sleep(4_000_000)  # some 2 ms
            found.append(results(*tensors, **calls[i % len(calls)]))
        for i, one in enumerate(found):
            assert all(map(torch.equal, one, alone[i % len(calls)])), (late, i, calls[i % len(calls)])


def test_a_larger_call_makes_the_memory_of_the_ring_grow_and_smaller_ones_go_on():
    small, large = leaves(tokens=256, dims=(64, 64)), leaves(tokens=16384 * RANKS, dims=(64, 64))
    expected = results(*small)
    before, _ = held_memory()
    for _ in range(2):
        assert all(x.isfinite().all() for x in results(*large))
        assert all(map(torch.equal, results(*small), expected))
    after, _ = held_memory()
    # K and V of the shard in 16 bits, their gradients in 32: 2 heads of 64 dims.
    assert after > before and after >= 2 * 2 * 16384 * 64 * (2 + 4)


def held():
    torch.cuda.synchronize(DEVICE)
    own = pathlib.Path("/proc/self")
    dist.barrier()  # a GPU that ranks share has one number of free bytes
    found = {"PyTorch": torch.cuda.memory_allocated(DEVICE), "reserved": torch.cuda.memory_reserved(DEVICE),
             "ring": held_memory()[0], "used": -torch.cuda.mem_get_info(DEVICE)[0],
             "threads": len(list((own / "task").iterdir())), "files": len(list((own / "fd").iterdir()))}
    dist.barrier()
    return found


def test_many_steps_of_changing_packings_take_no_more_memory():
    q, k, v = leaves(tokens=1024, dims=(128, 128))

    def step(i):
        cut = 1 + 5 * i  # each packing is another one
        o = ring_attention(q, k, v, cu_seqlens=torch.tensor([0, cut, 1024]))
        torch.autograd.grad(o.sum(), (q, k, v))

    def held_after(steps):
        for i in steps:
            step(i)
            if i == steps[-2]:  # a plan that is not kept goes with the first call after its passes have ended
                torch.cuda.synchronize(DEVICE)
        return held()

    before = held_after(range(30))  # more than plans are kept
    after = held_after(range(30, 200))
    assert after["used"] - before["used"] < 2**20
    assert {**after, "used": 0} == {**before, "used": 0}
    assert held_memory()[1] < 2**24


def test_a_new_plan_does_not_wait_for_the_device():
    q, k, v = (x.detach() for x in leaves(tokens=1024, dims=(64, 64)))
    packings = [torch.tensor([0, cut, 1024]) for cut in range(100, 130)]
    for packing in packings[:22]:
        ring_attention(q, k, v, cu_seqlens=packing)
    torch.cuda.synchronize(DEVICE)
    dist.barrier()
    ended = torch.cuda.Event()
    torch.cuda._sleep(2_000_000_000)  # a second or more
    ended.record()
    for packing in packings[22:]:
        ring_attention(q, k, v, cu_seqlens=packing)
    assert not ended.query()
    torch.cuda.synchronize(DEVICE)


def test_bad_use_is_refused_and_the_process_goes_on():
    def refused(message, here=None, tensors=None, **options):
        q, k, v = tensors or (x.detach() for x in leaves())
        if dist.get_rank() == RANKS - 1:
            options.update(here or {})
        with pytest.raises(ringlab.Refused) as error:
            ring_attention(q, k, v, **options)
        assert "\n" not in str(error.value) and message in str(error.value), str(error.value)
        assert ring_attention(*leaves()).isfinite().all()

    q, k, v = (x.detach() for x in leaves())
    refused("q is torch.float32; on CUDA ringlab computes in bfloat16 or float16", tensors=(q.float(), k, v))
    refused(f"v lies on cpu, q on {DEVICE}; they must be equal", tensors=(q, k, v.cpu()))
    refused("unknown schedule 'rign'", schedule="rign")
    refused("sinks are torch.float32 of shape (4,) on cpu", sinks=torch.zeros(4))
    refused("sinks hold nan; each must be a number", sinks=torch.tensor([0, torch.nan, 0, 0], device=DEVICE))
    refused("sinks hold inf; each must be a number", sinks=torch.tensor([0, 0, 0, torch.inf], device=DEVICE))
    refused("the kernels take 1 to 256 of each", tensors=[x.repeat(1, 1, 1, 20) for x in (q, k, v)])
    if RANKS > 1:
        refused(f"rank {RANKS - 1} calls with mask full, rank 0 with causal", here={"mask": "full"})


# Key 0 is NaN, and every row sees it.
@pytest.mark.parametrize("schedule", ["ring", "pull", "pass-q", "merge", "merge:tree", "joined-merge"])
def test_nan_in_a_key_reaches_every_row_that_sees_it(schedule):
    q, k, v = (x.detach() for x in leaves(tokens=512, dims=(64, 64), layout="contiguous"))
    if dist.get_rank() == 0:
        k[:, 0] = torch.nan
    o, lse = ring_attention(q, k, v, layout="contiguous", schedule=schedule, return_lse=True)
    assert o.isnan().all() and lse.isnan().all()


def new_ring(**options):
    group = dist.new_group(list(range(RANKS)))
    connect(group, **options)
    return group


# Each pass takes half of the time-out, as one rank comes late.
def test_a_ring_whose_passes_are_slow_is_healthy():
    group = new_ring(timeout=1.0)
    q, k, v = (x.detach() for x in leaves())
    ring_attention(q, k, v, group=group)
    for _ in range(6):
        if dist.get_rank() == 0:
            torch.cuda._sleep(900_000_000)  # half a second
        ring_attention(q, k, v, group=group)
        torch.cuda.synchronize(DEVICE)
    dist.barrier()


def test_a_graph_that_somebody_captures_while_a_pass_is_under_way():
    q, k, v = (x.detach() for x in leaves())
    y = torch.zeros(1, device=DEVICE)
    stream = torch.cuda.Stream(DEVICE)
    stream.wait_stream(torch.cuda.current_stream(DEVICE))
    torch.cuda._sleep(1_000_000_000)
    ring_attention(q, k, v)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        graph.capture_begin()
        y.add_(1)
        threading.Event().wait(0.4)  # the ring looks ten times a second
        graph.capture_end()
    torch.cuda.synchronize(DEVICE)
    graph.replay()
    assert ring_attention(q, k, v).isfinite().all() and y.item() == 1


def test_rings_of_groups_that_are_destroyed_are_freed():
    q, k, v = (x.detach() for x in leaves(tokens=8192 * RANKS, dims=(128, 128)))

    def used_with_a_new_group():
        group = dist.new_group(list(range(RANKS)))
        ring_attention(q, k, v, group=group)
        torch.cuda.synchronize(DEVICE)
        used, ring = held()["used"], held_memory(group)[0]
        dist.destroy_process_group(group)
        return used, ring

    first, ring = used_with_a_new_group()
    for _ in range(4):
        last, _ = used_with_a_new_group()
    assert ring > 2**24
    assert last - first < ring, (first, last, ring)  # of four more rings


def test_memory_that_one_rank_lacks_is_refused_by_all_and_they_stay_in_step(monkeypatch):
    q, k, v = leaves()
    expected = results(q, k, v)
    made = torch.empty

    def none_left(*size, dtype=None, **options):
        if dtype is torch.uint8 and "device" in options:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate it")
        return made(*size, dtype=dtype, **options)

    if dist.get_rank() == RANKS - 1:
        monkeypatch.setattr(torch, "empty", none_left)
        with pytest.raises(torch.OutOfMemoryError):
            results(q, k, v)
    else:
        with pytest.raises(ringlab.Refused, match=f"rank {RANKS - 1} refuses the call: CUDA out of memory"):
            results(q, k, v)
    monkeypatch.undo()
    assert all(map(torch.equal, results(q, k, v), expected))


def test_threads_may_share_a_ring():
    q, k, v = (x.detach() for x in leaves(tokens=256))
    expected = ring_attention(q, k, v)
    torch.cuda.synchronize(DEVICE)
    found = []

    def attend():
        with torch.cuda.device(DEVICE):
            for _ in range(20):
                found.append(ring_attention(q, k, v))
            torch.cuda.synchronize(DEVICE)

    threads = [threading.Thread(target=attend) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 40 and all(torch.equal(o, expected) for o in found)


# Each backward pass is one launch, which may hold all SMs while it waits for gradients of peers.
def test_backward_passes_of_two_rings_do_not_wait_for_each_other():
    groups, streams = [new_ring(timeout=20.0) for _ in range(2)], [torch.cuda.Stream(DEVICE) for _ in range(2)]
    tensors = [leaves(tokens=8192 * RANKS, dims=(128, 128)) for _ in groups]
    torch.cuda.synchronize(DEVICE)
    for _ in range(20):
        outputs = []
        for group, stream, (q, k, v) in zip(groups, streams, tensors):
            with torch.cuda.stream(stream):
                outputs.append(ring_attention(q, k, v, group=group, schedule="joined-ring"))
        for stream, o, own in zip(streams, outputs, tensors):
            with torch.cuda.stream(stream):
                torch.autograd.grad(o.float().sum(), own)
    torch.cuda.synchronize(DEVICE)
    dist.barrier()
