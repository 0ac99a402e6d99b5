"""What `validate --kineto` reads from profiles of a ring over gloo."""

import gzip
import json
import os
import pathlib
import subprocess

import pytest
import torch
import torch.distributed as dist

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


def covered(spans):
    length, reached = 0.0, float("-inf")
    for begin, end in sorted(spans):
        length += max(0.0, end - max(begin, reached))
        reached = max(reached, end)
    return length


def times_of(trace):
    """Compute, attention forward and backward, communication, exposed, in ms; and begin and end, in ms."""
    kinds = {"forward": [], "backward": [], "messages": [], "aten": []}
    for event in trace["traceEvents"]:
        name, category = event["name"], event.get("cat")
        kind = ("messages" if name.startswith("gloo:") else
                "forward" if name == "aten::_scaled_dot_product_flash_attention_for_cpu" else
                "backward" if name == "aten::_scaled_dot_product_flash_attention_for_cpu_backward" else
                "aten" if name.startswith("aten::") and name != "aten::scaled_dot_product_attention" else None)
        if kind and event["ph"] == "X" and (category == "cpu_op" or kind == "messages"):
            start = trace["baseTimeNanoseconds"] / 1e6 + event["ts"] / 1e3
            kinds[kind].append((start, start + event["dur"] / 1e3))
    counted = kinds["forward"] + kinds["backward"] + kinds["messages"]
    first, last = min(b for b, _ in counted), max(e for _, e in counted)
    compute = [(b, e) for b, e in kinds["forward"] + kinds["backward"] + kinds["aten"] if first <= b and e <= last]
    busy = covered(compute + kinds["messages"])
    return [covered(compute), covered(kinds["forward"]), covered(kinds["backward"]), covered(kinds["messages"]),
            busy - covered(compute)], busy, first, last


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


def validate(folder, *arguments, ending=".json", files=None):
    programs = os.environ.get("RINGLAB_PROGRAMS")
    if not programs or not os.access(f"{programs}/validate", os.X_OK):
        pytest.skip("the program validate is not built; RINGLAB_PROGRAMS may name its folder")
    files = files or [f"{rank}{ending}" for rank in reversed(range(dist.get_world_size()))]
    return subprocess.run([f"{programs}/validate", "--kineto", *files, "-o", f"r{dist.get_rank()}.h5", "--overwrite",
                           *arguments], cwd=folder, capture_output=True, text=True)


def test_the_table_is_what_the_profiles_say(profiles):
    done = validate(profiles)
    assert done.returncode == 0, done.stderr
    ranks = range(dist.get_world_size())
    times = [times_of(json.loads((profiles / f"{rank}.json").read_text())) for rank in ranks]
    end, begin = max(last for *_, last in times), min(first for *_, first, _ in times)
    rows = [line.split() for line in done.stdout.splitlines()[2:2 + len(ranks)]]
    for rank, (expected, busy, _, _) in zip(ranks, times):
        assert rows[rank][0] == str(rank)
        # Four digits are printed, and a double holds the time since 1970 to a quarter of a microsecond.
        got = [float(cell) for cell in rows[rank][1:]]
        assert got == pytest.approx([*expected, end - begin - busy], rel=1e-3, abs=2e-3)
        assert min(got[:4]) > 0
    computes = [expected[0] for expected, *_ in times]
    balance = max(computes) * len(computes) / sum(computes)
    assert f"slowest rank over mean: {balance:.3f}" in done.stdout


def test_a_prediction_stands_beside_it(profiles):
    done = validate(profiles, "--machines", "2cpus_calibrated", "--tokens", "512", "--heads", "4:4", "--head-dim", "32",
                    "--masks", "full", "--layouts", "contiguous", "--arithmetic", "bf16", "--kineto-passes", str(PASSES))
    assert done.returncode == 0, done.stderr
    assert "full contiguous P=2 S=512 ring on 2cpus_calibrated" in done.stdout
    table = {line.rsplit(maxsplit=3)[0].strip(): line.split()[-3:] for line in done.stdout.splitlines()
             if line.startswith(("time ms", "compute ms", "communication ms", "exposed ms"))}
    whole = max(float(line.split()[1]) for line in done.stdout.splitlines()[2:4])
    assert float(table["compute ms"][0]) == pytest.approx(whole / PASSES, rel=2e-3)
    for measured, predicted, ratio in table.values():
        assert float(predicted) > 0
        assert float(predicted) / float(measured) == pytest.approx(float(ratio), rel=0.01, abs=1e-3)


def test_compressed_profiles_give_the_same_table(profiles):
    done = validate(profiles)
    if dist.get_rank() == 0:
        for rank in range(dist.get_world_size()):
            (profiles / f"{rank}.json.gz").write_bytes(gzip.compress((profiles / f"{rank}.json").read_bytes()))
        (profiles / "cut.json.gz").write_bytes((profiles / "0.json.gz").read_bytes()[:-2000])
    dist.barrier()
    compressed = validate(profiles, ending=".json.gz")
    if "no zlib" in compressed.stderr:
        pytest.skip("the program validate was built without zlib")
    assert compressed.stdout == done.stdout
    cut = validate(profiles, files=["cut.json.gz"])
    assert cut.returncode == 1 and "'cut.json.gz' is not whole" in cut.stderr


def test_a_missing_rank_is_told(profiles):
    done = validate(profiles, files=["0.json"])
    assert done.returncode == 1
    assert "no trace of rank 1 is given, of a job of 2 ranks" in done.stderr
