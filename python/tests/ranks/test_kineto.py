"""What ringlab.kineto reads from profiles of a ring over gloo."""

import gzip
import pathlib
import re

import pytest
import torch
import torch.distributed as dist

from ringlab import Refused, kineto, predict

PASSES = 2


def ring_step(q, k, v):
    """Attention to the own block and to that of every other rank, forward and backward, with plain sends."""
    rank, world = dist.get_rank(), dist.get_world_size()
    block = torch.stack([k, v])
    for step in range(world):
        incoming, messages = torch.empty_like(block), []
        if step + 1 < world:
            messages = [dist.isend(block, (rank + 1) % world), dist.irecv(incoming, (rank - 1) % world)]
        keys, values = (x.clone().requires_grad_() for x in block)
        torch.nn.functional.scaled_dot_product_attention(q, keys, values).sum().backward()
        for message in messages:
            message.wait()
        block = incoming


@pytest.fixture(scope="module")
def profiles(tmp_path_factory):
    """A folder with the profiles of all ranks."""
    folder = [str(tmp_path_factory.mktemp("kineto"))]
    dist.broadcast_object_list(folder)
    torch.manual_seed(dist.get_rank())
    q, k, v = (torch.randn(1, 4, 256, 32) for _ in range(3))
    q.requires_grad_()
    ring_step(q, k, v)
    dist.barrier()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        for _ in range(PASSES):
            ring_step(q, k, v)
    profile.export_chrome_trace(f"{folder[0]}/{dist.get_rank()}.json")
    dist.barrier()
    return pathlib.Path(folder[0])


def shares(folder, ending=".json"):
    return kineto.shares([kineto.read(folder / f"{rank}{ending}") for rank in reversed(range(dist.get_world_size()))])


def test_profiles_of_a_ring_over_gloo_have_all_of_it(profiles):
    rows = shares(profiles)
    assert [row["rank"] for row in rows] == [0, 1]
    for row in rows:
        assert 0 < row["forward"] < row["backward"] and row["forward"] + row["backward"] <= row["compute"]
        assert row["exposed"] <= row["communication"]
    whole = [row["compute"] + row["exposed"] + row["idle"] for row in rows]
    assert whole == pytest.approx([whole[0]] * 2)
    computes = [row["compute"] for row in rows]
    balance = float(re.search(r"slowest rank over mean: ([\d.]+)\.", kineto.text(rows))[1])
    assert balance == pytest.approx(2 * max(computes) / sum(computes), rel=2e-3)


def test_a_prediction_stands_beside_it(profiles):
    rows = shares(profiles)
    predicted = predict(tokens=512, ranks=2, machines="2cpus_calibrated", heads=(4, 4), head_dim=32, masks="full",
                        layouts="contiguous")
    table = {line.rsplit(maxsplit=3)[0].strip(): [float(cell) for cell in line.split()[-3:]]
             for line in kineto.comparison(rows, predicted, PASSES).splitlines()[1:] if not line.endswith("-")}
    assert table["compute ms"][0] == pytest.approx(1e3 * max(row["compute"] for row in rows) / PASSES, rel=2e-3)
    for measured, expected, ratio in table.values():
        assert expected > 0 and expected / measured == pytest.approx(ratio, rel=0.01, abs=1e-3)


def test_compressed_profiles_give_the_same_rows_and_cut_ones_are_refused(profiles):
    rows = shares(profiles)
    if dist.get_rank() == 0:
        for rank in range(dist.get_world_size()):
            (profiles / f"{rank}.json.gz").write_bytes(gzip.compress((profiles / f"{rank}.json").read_bytes()))
        (profiles / "cut.json.gz").write_bytes((profiles / "0.json.gz").read_bytes()[:-2000])
        (profiles / "cut.json").write_bytes((profiles / "0.json").read_bytes()[:-2000])
    dist.barrier()
    assert shares(profiles, ".json.gz") == rows
    for name in ("cut.json.gz", "cut.json"):
        with pytest.raises(Refused, match="is not whole"):
            kineto.read(profiles / name)


def test_a_missing_rank_is_told(profiles):
    with pytest.raises(Refused, match="no trace of rank 1 is given, of a job of 2 ranks"):
        kineto.shares([kineto.read(profiles / "0.json")])


@pytest.mark.parametrize("name, kind", [
    ("ncclDevKernel_SendRecv(ncclDevComm*)", "message"), ("gloo:send", "message"), ("Memcpy PtoP (Device)", "message"),
    ("void flash_fwd_kernel<...>", "forward"), ("flash_bwd_dq_dk_dv_loop", "backward"), ("fmha_cutlassB_bf16", "backward"),
    ("ringlab::gpu::hopper::forward_kernel", "forward"), ("ringlab::gpu::rows::query_gradient", "backward"),
    ("_attn_fwd.kd", "forward"), ("bwd_kernel_dk_dv.kd", "backward"), ("aten::mm", "other"),
    ("triton_poi_fused_attention_mul_0", "other"), ("triton_red_fused__flash_attention_backward_1", "other"),
    ("triton_per_fused_sdpa_2", "other"), ("triton_tem_fused_flex_attention_0", "forward")])
def test_names_say_what_an_event_is(name, kind):
    assert kineto.kind_of(name) == kind


def trace(rank, world, events, groups=(), base=0):
    return {"distributedInfo": {"rank": rank, "world_size": world, "pg_config": [{"ranks": list(g)} for g in groups]},
            "baseTimeNanoseconds": base, "traceEvents": [
                {"ph": "X", "cat": cat, "name": name, "ts": ts, "dur": dur, "pid": 0, "tid": 1} for cat, name, ts, dur in events]}


KERNELS = [("kernel", "gelu", 0, 5), ("kernel", "flash_fwd", 10, 20), ("kernel", "nccl_send", 25, 20),
           ("kernel", "flash_bwd", 50, 10), ("cpu_op", "aten::mm", 0, 900)]


def test_gpu_activities_alone_count_where_there_are_some():
    row, = kineto.shares([kineto.profile_of(trace(0, 1, KERNELS), "0")])
    expected = {"compute": 30, "forward": 20, "backward": 10, "communication": 20, "exposed": 15, "idle": 5}
    assert {name: 1e6 * row[name] for name in expected} == pytest.approx(expected)


def test_on_cpus_the_innermost_operators_and_messages_of_gloo_count():
    events = [("cpu_op", "aten::mm", 0, 5), ("cpu_op", "aten::scaled_dot_product_attention", 10, 20),
              ("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu", 12, 10), ("cpu_op", "aten::add", 23, 2),
              ("user_annotation", "gloo:send", 20, 20), ("cpu_op", "autograd::engine", 0, 90),
              ("cpu_op", "aten::_scaled_dot_product_flash_attention_for_cpu_backward", 50, 10)]
    row, = kineto.shares([kineto.profile_of(trace(0, 1, events), "0")])
    expected = {"compute": 22, "forward": 10, "backward": 10, "communication": 20, "exposed": 16, "idle": 10}
    assert {name: 1e6 * row[name] for name in expected} == pytest.approx(expected)


def test_a_group_of_the_job_suffices_and_clocks_without_a_common_time_begin_at_0():
    def profile(rank, base=0):
        return kineto.profile_of(trace(rank, 8, KERNELS, [(2, 6), (3,)], base), str(rank))

    rows = kineto.shares([profile(6, 10**12), profile(2)])
    assert [row["rank"] for row in rows] == [2, 6] and rows[0]["idle"] == pytest.approx(rows[1]["idle"], rel=1e-3)
    for files, why in (([2, 7], "no trace of rank 0"), ([2, 2], "both of rank 2"), ([3], "no trace of rank 0")):
        with pytest.raises(Refused, match=why):
            kineto.shares([profile(rank) for rank in files])


def test_what_is_no_profile_of_a_rank_is_refused():
    for wrong, why in (([], "no traceEvents"), ({"traceEvents": []}, "does not say which rank"),
                       (trace(0, 2, KERNELS[:1]), "no attention among its 1 events")):
        with pytest.raises(Refused, match=why):
            kineto.profile_of(wrong, "0.json")
