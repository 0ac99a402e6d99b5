"""ringlab.record() around steps of a ring over gloo."""

import os
import pathlib
import re
import time

import dense
import pytest
import torch
import torch.distributed as dist
from torch.utils.checkpoint import checkpoint

import ringlab
from ringlab.torch import _record, ring_attention, shard

MACHINE = "2cpus_calibrated"


@pytest.fixture
def path(tmp_path):
    """Rank 0's, on every rank."""
    pytest.importorskip("h5py")
    names = [str(tmp_path / "step.h5")]
    dist.broadcast_object_list(names)
    return pathlib.Path(names[0])


def leaves(dtype=torch.bfloat16, tokens=512):
    tensors = dense.random_tensors(tokens, dtype=dtype, dims=(32, 32))
    return [shard(x).requires_grad_() for x in tensors[:3]]


def step(layers=2, between=0.0, **options):
    q, k, v = leaves()
    for _ in range(layers):
        q = ring_attention(q, k, v, **options)
        time.sleep(between)
    q.float().sum().backward()


def table(text):
    """{what: (measured, predicted)} of the comparison."""
    lines = [line.split() for line in text.splitlines() if line.endswith(tuple("0123456789")) and " ms " in line
             or line.startswith("balance")]
    return {line[0]: tuple(map(float, line[-3:-1])) for line in lines
            if line[0] in ("time", "compute", "communication", "exposed", "balance")}


def test_a_step_is_measured_and_predicted(path):
    step()
    dist.barrier()
    begin = time.monotonic()
    with ringlab.record(path, machines=MACHINE) as recording:
        step(between=0.5)
    took = time.monotonic() - begin
    assert "causal zigzag P=2 S=512 ring on" in recording.text, recording.text
    found = table(recording.text)
    assert set(found) == {"time", "compute", "communication", "exposed", "balance"}, recording.text
    assert all(predicted > 0 for what, (_, predicted) in found.items() if what != "exposed")
    measured = {what: times[0] / 1e3 for what, times in found.items() if what != "balance"}
    # Of one of two layers; what lies between passes is left out. Four digits are printed.
    assert 0 < measured["compute"] <= measured["time"] * 1.001
    assert measured["time"] < (took - 1.0) / 2
    assert measured["compute"] + measured["exposed"] <= measured["time"] * 2.001


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device is here")
def test_kernels_and_copies_of_a_step_on_gpus_are_recorded(path):
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())

    def step_on_gpus():
        q, k, v = (x.detach().to(device).requires_grad_() for x in leaves(tokens=8192))
        ring_attention(ring_attention(q, k, v), k, v).float().sum().backward()
        torch.cuda.synchronize()

    step_on_gpus()
    dist.barrier()
    begin = time.monotonic()
    with ringlab.record(path, machines="8xh100") as recording:
        step_on_gpus()
    took = 1e3 * (time.monotonic() - begin)
    found = table(recording.text)
    assert set(found) == {"time", "compute", "communication", "exposed", "balance"}, recording.text
    compute, communication, whole = (found[what][0] for what in ("compute", "communication", "time"))
    # A rank receives K and V, and gradients of both; it attends to two blocks.
    assert 0 < compute <= 1.001 * whole < took and 0 < communication <= 1.001 * whole, recording.text


def test_operations_lie_within_their_pass_and_are_all_there():
    recording = _record.Recording("", [], "", 2)
    begins = []
    _record.active = recording
    try:
        recording.group = dist.group.WORLD.group_name
        for _ in range(2):
            begins.append(time.time())
            ring_attention(*(x.detach() for x in leaves()), schedule="merge")
    finally:
        _record.active = None
    begins.append(time.time())
    for i, (which, events) in enumerate(recording.passes):
        assert which == "forward"
        # Each rank attends to its own keys and to those of the other, whose result it sends and receives.
        kinds = [kind for kind, *_ in events]
        assert kinds.count("forward") == 2 and kinds.count("message") >= 2
        for _, begin, end in events:
            # Two clocks are read, one behind the other.
            assert begins[i] - 1e-3 <= begin <= end <= begins[i + 1] + 1e-3


def test_the_record_has_the_spans(path):
    with ringlab.record(path, machines=MACHINE):
        step(layers=1, layout="striped:4", cu_seqlens=torch.tensor([0, 100, 500]))
    import h5py

    with h5py.File(path) as file:
        spans, ranks = file["spans"], file["ranks/rank"][:].tolist()
        assert ranks == [0, 1] == sorted(set(spans["rank"][:].tolist()))
        assert set(spans["kind"].asstr()) >= {"forward", "backward", "message"}
        assert (spans["end"][:] >= spans["begin"][:]).all() and len(spans["begin"]) > 8
        predicted = file[f"predicted/{MACHINE}"]
        assert "documents:100" in predicted["mask"].asstr()[0] and "+valid:0-500" in predicted["mask"].asstr()[0]


def test_each_ring_writes_its_own_record(path):
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    path = path.with_name(f"ring{dist.get_rank()}.h5")
    with ringlab.record(path, machines=MACHINE, group=alone) as recording:
        step(layers=1, group=alone)
    assert path.exists() and "P=1 S=256 ring on" in recording.text, recording.text
    assert re.search(r"^communication ms +0 +0 ", recording.text, re.MULTILINE), recording.text


def refused(message, path, body=step, **options):
    with pytest.raises(ringlab.Refused) as error:
        with ringlab.record(path, **options):
            body()
    assert message in str(error.value) and "\n" not in str(error.value), str(error.value)
    dist.barrier()


def nothing():
    raise AssertionError("the step is begun")


def test_what_cannot_be_recorded_is_told_before_the_step(path):
    refused("of the record is not there; make it first", path.parent / "none" / "step.h5", nothing)
    refused("machine 'h201' is neither a file nor one of", path, nothing, machines="h201")
    with ringlab.record(path):
        step()
        refused("ringlab.record() is going on already", path, nothing)
    refused("step.h5 is there already; give another path, or overwrite=True", path, nothing)
    with ringlab.record(path, overwrite=True) as recording:
        step()
    assert "Balance of compute" in recording.text and "predicted" not in recording.text


def test_steps_that_have_no_prediction_are_told(path):
    def two_kinds():
        step(layers=1)
        step(layers=1, soft_cap=3.0, schedule="merge")

    def checkpointed():
        checkpoint(lambda *x: ring_attention(*x), *leaves(), use_reentrant=False).float().sum().backward()

    refused("the step calls 2 kinds of attention, which differ in schedules, soft_cap; predictions are of one kind",
            path, two_kinds, machines=MACHINE)
    refused("the step has 2 forward and 1 backward passes", path, checkpointed, machines=MACHINE)
    refused("calls no ring_attention over this group", path, lambda: None)
    refused("q is torch.float64; record(machines=...) predicts bfloat16 and float16: leave out machines", path,
            lambda: ring_attention(*leaves(torch.float64)), machines=MACHINE)
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())][dist.get_rank()]
    refused("calls ring_attention over another group than record(group=...)", path, lambda: step(group=alone))
    assert not path.exists()
    step()


def event(category, name, ts, dur, correlation=None):
    return {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur, "tid": 7, "pid": 0,
            "args": {} if correlation is None else {"correlation": correlation}}


def test_kernels_belong_to_the_pass_that_launched_them():
    trace = {"baseTimeNanoseconds": 5000, "traceEvents": [
        event("user_annotation", "ringlab backward: causal", 100, 20), event("user_annotation", "other", 0, 200),
        event("user_annotation", "ringlab forward: causal", 10, 20),
        event("cuda_runtime", "cudaLaunchKernel", 12, 1, 1), event("cuda_driver", "cuLaunchKernelEx", 110, 1, 2),
        event("cuda_runtime", "cudaLaunchKernel", 50, 1, 3), event("cuda_runtime", "cudaMemcpyAsync", 29, 1, 4),
        event("kernel", "ringlab::forward_kernel", 130, 40, 1), event("kernel", "ringlab::backward_kernel", 180, 90, 2),
        event("kernel", "gelu", 140, 5, 3), event("gpu_memcpy", "Memcpy PtoP", 135, 6, 4), {"ph": "f", "id": 3}]}
    forward, backward = _record.events_of_passes(trace)
    assert [kind for kind, *_ in forward] == ["forward", "message"] and [kind for kind, *_ in backward] == ["backward"]
    times = [1e6 * time for _, *times in forward + backward for time in times]
    assert times == pytest.approx([135, 175, 140, 146, 185, 275])


def test_passes_are_put_one_behind_the_other():
    ranks = [[[("other", 100, 105)], [("forward", 300, 310)]], [[("other", 101, 108)], [("forward", 290, 300)]]]
    assert _record.one_behind_the_other(ranks) == [[("other", 0, 5), ("forward", 18, 28)],
                                                   [("other", 1, 8), ("forward", 8, 18)]]
