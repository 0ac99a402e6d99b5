"""A rank of a ring of CUDA devices that dies: every survivor raises within the time-out, and its stream goes on."""

import datetime
import os
import time

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

import ringlab
from ringlab import _cuda
from ringlab.torch import _ring, connect, ring_attention

if not torch.cuda.is_available():
    pytest.skip("no CUDA device is here", allow_module_level=True)
try:
    _cuda.library()
except ringlab.Refused as error:
    pytest.skip(str(error), allow_module_level=True)

TIMEOUT = 4.0  # seconds, of the ring
MARGIN = 8.0   # for machines that are busy with other things
RANKS = 3


def attend(q, cut):
    return ring_attention(q, q, q, cu_seqlens=torch.tensor([0, cut, 64 * RANKS]))


def dies_between_passes(rank, q):
    if rank == 1:
        os._exit(1)
    attend(q, 7)


def dies_while_a_plan_is_made(rank, q):
    if rank == 1:
        _ring.Ring.all_gather = lambda *_: os._exit(1)
    attend(q, 9)


def dies_while_the_memory_grows(rank, q):
    if rank == 1:
        gather, calls = _ring.Ring.all_gather, []

        def until_the_second(*arguments):
            calls.append(arguments)
            return gather(*arguments) if len(calls) < 2 else os._exit(1)

        _ring.Ring.all_gather = until_the_second
    large = torch.randn(1, 32768, 2, 64, device=q.device, dtype=q.dtype)
    ring_attention(large, large, large)


def dies_with_a_pass_under_way(rank, q):
    if rank == 1:
        # Its device does not come to the pass: what the others wait for on theirs never comes.
        torch.cuda._sleep(1 << 40)
        attend(q, 7)
        os._exit(1)
    attend(q, 7)
    o = attend(q, 7)
    torch.cuda.synchronize()
    # The first rows of rank 0 see keys of their own alone; most rows see those that did not come.
    assert o.isnan().any(), "a pass that failed has a result that looks like one"
    attend(q, 7)


BODIES = [dies_between_passes, dies_while_a_plan_is_made, dies_while_the_memory_grows, dies_with_a_pass_under_way]


def run_rank(rank, body, folder, results):
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=RANKS,
                            timeout=datetime.timedelta(seconds=60))
    connect(timeout=TIMEOUT)
    q = torch.randn(1, 64, 2, 64, device=device, dtype=torch.bfloat16)
    for cut in (5, 7):
        attend(q, cut)
    torch.cuda.synchronize()
    dist.barrier()
    begin = time.monotonic()
    try:
        body(rank, q)
        message = "nothing"
    except ringlab.BrokenRing as error:
        message = str(error)
    torch.cuda.synchronize()  # the stream goes on
    results.put((rank, message, time.monotonic() - begin))
    results.close()
    results.join_thread()
    os._exit(0)


@pytest.mark.parametrize("body", BODIES)
def test_survivors_raise_within_the_time_out(body, tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=run_rank, args=(rank, body, tmp_path, results)) for rank in range(RANKS)]
    for process in processes:
        process.start()
    try:
        found = dict((rank, rest) for rank, *rest in (results.get(timeout=120) for _ in range(RANKS - 1)))
    finally:
        for process in processes:
            process.kill()
            process.join()
    assert sorted(found) == [0, 2]
    for rank, (message, seconds) in found.items():
        assert message.startswith(f"rank {rank} of {RANKS}: "), message
        assert "\n" not in message
        # A pass under way ends after the time-out; what made it late is noticed within the next one.
        assert seconds < 2 * TIMEOUT + MARGIN, (rank, message, seconds)


def run_blocked(rank, folder, results):
    os.environ["CUDA_LAUNCH_BLOCKING"] = "1"  # before CUDA starts
    device = torch.device("cuda", rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=2)
    connect(timeout=30.0)
    q = torch.randn(1, 2048, 4, 64, device=device, dtype=torch.bfloat16, requires_grad=True)
    for schedule in ("joined-ring", "pull", "all-gather:2", "joined-merge"):
        for _ in range(2):
            ring_attention(q, q, q, schedule=schedule).float().sum().backward()
        torch.cuda.synchronize()
    with pytest.raises(ringlab.Refused, match="CUDA_LAUNCH_BLOCKING is set"):
        group = dist.new_group([0, 1])
        connect(group, timeout=30.0, transport="nccl")
        ring_attention(q, q, q, group=group)
    results.put((rank, bool(q.grad.isfinite().all())))
    results.close()
    results.join_thread()
    os._exit(0)


def test_launches_that_block_the_host(tmp_path):
    context = multiprocessing.get_context("spawn")
    results = context.Queue()
    processes = [context.Process(target=run_blocked, args=(rank, tmp_path, results)) for rank in range(2)]
    for process in processes:
        process.start()
    try:
        assert dict(results.get(timeout=100) for _ in processes) == {0: True, 1: True}
    finally:
        for process in processes:
            process.kill()
            process.join()
