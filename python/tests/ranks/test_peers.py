"""python -m ringlab.peers on two gloo processes: what it times is right, and how it times it."""

import importlib.util
import math
import re

import dense
import pytest
import torch
import torch.distributed as dist

from ringlab.peers import __main__ as peers
from ringlab.peers import judge, kernels, report, systems, timing
from ringlab.peers.case import Case, Mask, WrongUse
from ringlab.peers.world import World
from ringlab.torch import ring_attention

# Of dense.MASKS, those whose rows see one range of keys, with the names that are written alike.
MASKS = {name: dense.MASKS[name] for name in ("full", "causal", "window", "documents")}
HERE = ["ringlab", "ringlab:merge/balanced:4", "ringlab:pass-q/striped", "ulysses"]
SMALL = ["--tokens-per-rank", "32", "--heads", "4:2", "--head-dim", "8"]
QUICK = ["--device", "cpu", "--seconds", "0.001", "--warm-up", "0", "--repeats", "2"]


@pytest.fixture(scope="module")
def world():
    return World("cpu")


def case_of(mask="causal", dtype="fp64", heads=(4, 2), tokens=64, value_dim=8):
    return Case(Mask.of(mask), tokens, dist.get_world_size(), *heads, 8, value_dim, dtype)


def judged(names, case, world):
    """{name: report.Row}"""
    whole, shards = case.draw(world.device), {}
    expected = judge.reference(case, *whole, world)
    return {name: peers._judged(name, case, whole, expected, shards, world) for name in names}


def run(words, capsys):
    """(status, what rank 0 printed) of a command line."""
    status = peers.run(*_arguments(words), World("cpu"))
    return World("cpu").roots((status, capsys.readouterr().out))


def _arguments(words):
    arguments, _, cases = peers.checked(words)
    return arguments, cases


def stand_in(name, attend, case, world):
    return systems.System(name, "ulysses", "ulysses", "contiguous", "sdpa",
                          systems.positions(case, world, "contiguous"), attend)


@pytest.mark.parametrize("name", MASKS)
def test_masks_and_the_reference_are_those_of_dense_attention(name, world):
    spec, visible = MASKS[name]
    seen, case = visible(64), case_of(spec)
    first, end = case.mask.ranges(64)
    key = torch.arange(64)
    assert torch.equal((key >= first[:, None]) & (key < end[:, None]), seen)
    assert case.visible_pairs == int(seen.sum())
    whole = case.draw(world.device)
    expected, found = dense.dense(*whole, seen), judge.reference(case, *whole, world)
    for result in judge.RESULTS:
        want = getattr(expected, result)[0]
        # Both are fp64 sums of 64 terms at most, in another order.
        assert (found[result] - want).norm() <= 64 * 2.0 ** -53 * want.norm(), result


def test_blocks_of_the_reference_do_not_matter(world, monkeypatch):
    case = case_of("causal+documents:20,44")
    whole = case.draw(world.device)
    at_once = judge.reference(case, *whole, world)
    monkeypatch.setattr(judge, "ELEMENTS", 5 * 2 * 64)
    for result, x in judge.reference(case, *whole, world).items():
        assert (x - at_once[result]).norm() <= 64 * 2.0 ** -53 * x.norm(), result


@pytest.mark.parametrize("dtype", ["fp64", "fp32", "bf16"])
@pytest.mark.parametrize("mask", ["full", "causal", "causal+documents:20,12x2,20"])
def test_every_system_that_is_here_is_right(mask, dtype, world):
    rows = judged(HERE, case_of(mask, dtype), world)
    assert {name: row.absent for name, row in rows.items() if row.absent} == {}
    assert all(0 < error <= judge.allowed(row.case) for row in rows.values() for error in row.errors.values())


def test_values_may_have_a_dim_of_their_own(world):
    case = case_of(value_dim=12)
    assert case.shape == "4:2/8-12/fp64" and case.flop("both") == case.flop("forward") + case.flop("backward")
    assert judged(["ringlab"], case, world)["ringlab"].absent == ""


def test_ulysses_moves_heads_and_tokens_where_they_belong():
    from ringlab.peers.ulysses import to_heads, to_tokens
    rank, ranks = dist.get_rank(), dist.get_world_size()
    whole = torch.arange(1.0 * 6 * 4 * 3).reshape(1, 6, 4, 3)
    own = whole[:, 3 * rank:3 * rank + 3].clone().requires_grad_()
    heads, again = to_heads((own, -own), ranks)
    assert torch.equal(heads, whole[:, :, 2 * rank:2 * rank + 2]) and torch.equal(again, -heads)
    assert torch.equal(to_tokens(heads, ranks), own)
    weights = whole[:, :, 2 * rank:2 * rank + 2].detach()
    (heads * weights).sum().backward()
    assert torch.equal(own.grad, own.detach())


@pytest.mark.parametrize("dtype", ["bf16", "fp64"])
def test_a_wrong_system_is_named_and_not_timed(dtype, world, monkeypatch, capsys):
    """One that sees one key too many, one without gradients of half its heads, and one that fails on one rank."""
    def sees_too_much(q, k, v):
        return ring_attention(q, k, v, mask="window:64,1", layout="contiguous")

    def forgets_a_gradient(q, k, v):
        return ring_attention(q, torch.cat([k[:, :, :1], k[:, :, 1:].detach()], 2), v, layout="contiguous")

    def fails(q, k, v):
        if dist.get_rank() == 1:
            raise NotImplementedError("no such kernel\nand more")
        return q + 0 * (k.sum() + v.sum())

    bad = {"ulysses:sdpa": sees_too_much, "ulysses:fa2": forgets_a_gradient, "ulysses:fa4": fails}
    make = systems.make
    monkeypatch.setattr(systems, "make", lambda name, case, world: stand_in(name, bad[name], case, world)
                        if name in bad else make(name, case, world))
    status, said = run([*SMALL, *QUICK, "--dtype", dtype, "--systems", "ringlab", *bad], capsys)
    assert status == 0
    lines = {line.split(": ")[1]: line for line in said.splitlines() if line.startswith("not timed")}
    assert "o by" in lines["ulysses:sdpa"] and "wrong: off fp64 attention" in lines["ulysses:sdpa"]
    assert "dk by" in lines["ulysses:fa2"] and "o by" not in lines["ulysses:fa2"]
    assert lines["ulysses:fa4"] == "not timed: ulysses:fa4: rank 1: NotImplementedError: no such kernel"
    assert [line.split()[0] for line in said.splitlines() if line.startswith(("ringlab ", "ulysses"))] == ["ringlab"]


def test_a_pass_that_fails_is_left_out_and_the_others_are_timed(monkeypatch, capsys):
    make = systems.make

    def only_with_gradients(name, case, world):
        system = make(name, case, world)
        attend = system.attend

        def picky(q, k, v):
            if not torch.is_grad_enabled():
                raise RuntimeError("no pass without gradients")
            return attend(q, k, v)
        if name == "ulysses":
            system.attend = picky
        return system

    monkeypatch.setattr(systems, "make", only_with_gradients)
    status, said = run([*SMALL, *QUICK, "--systems", "ringlab", "ulysses"], capsys)
    assert status == 0
    assert "not timed: ulysses: forward: RuntimeError: no pass without gradients" in said
    row = next(line.split() for line in said.splitlines() if line.startswith("ulysses"))
    assert row[1:5] == ["-"] * 4 and float(row[5]) > 0


@pytest.mark.parametrize("mask", ["full", "causal", "window:8,0", "causal+documents:20,44"])
@pytest.mark.parametrize("family", [kernels.Cudnn, kernels.Flash2])
def test_kernels_for_cuda_are_called_as_pytorch_declares_them(family, mask):
    """With tensors that have shapes and strides but no memory, as Ulysses hands them over."""
    from torch._subclasses.fake_tensor import FakeTensorMode
    found, parsed = family(), Mask.of(mask)
    if parsed.window and not found.takes_window or parsed.documents and not found.takes_packing:
        pytest.skip("not for these kernels")
    with FakeTensorMode():
        packing = kernels.Packing.of(parsed.documents, "cuda") if parsed.documents else None
        block = kernels.Block(parsed.causal, parsed.window, packing)
        q, k, v = torch.empty(1, 64, 12, 64, device="cuda", dtype=torch.bfloat16).split([8, 2, 2], 2)
        o, lse = found.forward(q, k, v, block)
        gradients = found.backward(torch.empty_like(q), q, k, v, o, lse, block)
        assert [x.shape for x in (o, *gradients)] == [x.shape for x in (q, q, k, v)]
        assert lse.shape == ((8, 64) if packing else (1, 8, 64))


def test_the_table_has_every_system_and_says_what_is_missing(capsys):
    status, said = run([*SMALL, *QUICK, "--protocol", "both", "--passes", "forward", "backward", "both", "--systems",
                        *HERE, "ulysses:cudnn", "context-parallel", "ring-flash-attention", "alone"], capsys)
    assert status == 0
    for protocol in ("burst", "sustained"):
        lines = said.split(protocol + "\n")[1].splitlines()
        assert lines[0].split() == ["system"] + [word for which in ("fwd", "bwd", "fwd+bwd") for word in
                                                 (which, "ms", "TFLOP/s", "spread", "/", "other")]
        rows = [line.split() for line in lines[1:1 + len(HERE)]]
        assert [row[0] for row in rows] == HERE
        assert all(float(row[1]) > 0 and float(row[2]) > 0 for row in rows)
    assert "forward and backward: ringlab" in said and "times the rate of the best other, ulysses" in said
    assert "not timed: ulysses:cudnn: cudnn kernels are for CUDA devices" in said
    assert "not timed: context-parallel: PyTorch's context_parallel has kernels for CUDA devices alone" in said
    assert "not timed: ring-flash-attention: fa2 kernels are for CUDA devices" in said
    assert "not timed: alone: kernels alone are those of one GPU, and there are 2 processes" in said


def test_a_system_that_cannot_do_the_case_is_named_and_the_rest_goes_on(capsys):
    status, said = run(["--tokens-per-rank", "31", "--heads", "3:1", "--head-dim", "8", *QUICK, "--systems", "ringlab",
                        "ringlab:ring/contiguous", "ulysses"], capsys)
    assert status == 0
    assert "\nringlab:ring/contiguous " in said
    assert "not timed: ulysses: 2 ranks do not divide 3 query heads" in said
    assert "not timed: ringlab: " in said and "62" in said.split("not timed: ringlab: ")[1].splitlines()[0]
    status, said = run(["--tokens-per-rank", "32", "--heads", "3:1", *QUICK, "--systems", "ulysses"], capsys)
    assert status == 1 and "of the best other" not in said  # nothing was timed; run() has rank 0's status


@pytest.mark.parametrize("words, message", [
    (["--systems", "rignlab"], "unknown system 'rignlab', did you mean 'ringlab'?"),
    (["--systems", "ringlab:rign/zigzag"], "unknown schedule 'rign', did you mean 'ring'?"),
    (["--systems", "ringlab:ring"], "'ring' is not of the form SCHEDULE/LAYOUT, as ring/zigzag"),
    (["--systems", "ulysses:cudn"], "unknown kernels 'cudn', did you mean 'cudnn'?"),
    (["--systems", "ulysses", "ulysses"], "--systems names one twice"),
    (["--heads", "32:5"], "--heads is '32:5'; kv heads must divide query heads"),
    (["--tokens-per-rank", "0"], "--tokens-per-rank is '0'; it must be a whole number, 1 or more"),
    (["--mask", "causl"], "'causl' is unknown here; masks are full, causal, window:LEFT,RIGHT"),
    (["--mask", "causal+documents:10,20", *SMALL], "its documents have 30 tokens, the sequence has 64"),
    (["--output", "no/such/folder/peers.h5"], "--output"),
    (["--dtype", "fp8"], "argument --dtype: invalid choice: 'fp8'"),
    (["--seconds", "-1"], "--seconds is -1.0; it must be 0 or more"),
])
def test_wrong_use_gets_one_line(words, message):
    with pytest.raises(WrongUse) as error:
        peers.checked(["--device", "cpu", *words])
    assert message in str(error.value) and "\n" not in str(error.value)


def test_output_without_h5py_is_refused_before_anything_is_done(monkeypatch, tmp_path):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(WrongUse, match="--output needs the Python package h5py"):
        peers.checked([*SMALL, *QUICK, "--output", str(tmp_path / "peers.h5")])


# ---- The protocols ----


class Spy(timing.Call):
    """A call that notes its turns and does nothing else."""

    def __init__(self, name, log, case, world):
        super().__init__(stand_in(name, None, case, world), "forward", case.draw(world.device))
        self.log = log

    def __call__(self):
        self.log.append((self.system.name, self.tensors[0].sum().item()))


def test_sustained_rounds_alternate_and_leave_out_the_first_third(world):
    log, case = [], case_of()
    calls = [Spy(name, log, case, world) for name in "ab"]
    assert timing.time_sustained(calls, world, 3, 1e-9, 0, timing.Deadline(math.inf, world))
    names = "".join(name for name, _ in log)
    assert names == "aaabbb" + 3 * ("a" * 6 + "b" * 6)  # three calls to know how long one takes, then turns of six
    assert [[len(turn) for turn in call.rounds] for call in calls] == [[4, 4, 4]] * 2
    assert all(len(ranks) == 2 for call in calls for turn in call.rounds for ranks in turn)


def test_bursts_draw_anew_and_alternate(world):
    log, case = [], case_of()
    calls = [Spy(name, log, case, world) for name in "ab"]
    assert timing.time_bursts(calls, world, timing.Deadline(math.inf, world), rest=0)
    assert "".join(name for name, _ in log) == "ab" * timing.BURST
    assert len({total for _, total in log}) == len(log)
    assert [len(call.burst) for call in calls] == [timing.BURST] * 2


def test_the_time_limit_ends_after_a_round_and_keeps_it(world):
    class AfterOne:
        asked = 0

        def is_over(self):
            self.asked += 1
            return self.asked > 1

    log, case = [], case_of()
    calls = [Spy(name, log, case, world) for name in "ab"]
    assert not timing.time_sustained(calls, world, 5, 1e-9, 0, AfterOne())
    assert [len(call.rounds) for call in calls] == [1, 1]
    assert timing.sustained_seconds(calls[0]).median > 0


def test_no_time_is_said_and_nothing_is_timed(capsys):
    _, said = run([*SMALL, *QUICK, "--time-limit", "0", "--systems", "ringlab"], capsys)
    assert "time is up: 32 tokens per rank not timed" in said


def test_medians_are_of_the_slowest_rank():
    call = timing.Call(None, "forward", None)
    call.rounds = [[[1.0, 2.0], [1.0, 6.0]], [[9.0, 1.0], [1.0, 1.0]], [[3.0, 1.0], [3.0, 1.0]]]
    assert timing.sustained_seconds(call) == timing.Typical(4.0, (4.5 - 3.5) / 4.0)  # of 4, 5, 3
    call.burst = [[99.0, 99.0]] * 5 + [[1.0, 2.0], [3.0, 1.0], [4.0, 4.0], [5.0, 0.0], [6.0, 0.0]]
    assert timing.burst_seconds(call).median == 4.0
    call.burst = call.burst[:1]
    assert timing.burst_seconds(call) is None


def test_ratios_are_over_the_best_of_another_family():
    case = case_of()

    def row(name, seconds):
        found = report.Row(name, case)
        found.calls = [timing.Call(None, "forward", None)]
        found.calls[0].rounds = [[[seconds, seconds]]]
        return found

    rows = [row("ringlab:ring/zigzag", 2.0), row("ringlab:pull/zigzag", 1.0), row("ulysses:fa2", 4.0)]
    lines = report.table(rows, "sustained", ["forward"]).splitlines()
    assert [line.split()[-1] for line in lines[1:4]] == ["2.000", "4.000", "0.250"]
    assert lines[4] == "forward: ringlab:pull/zigzag has 4.000 times the rate of the best other, ulysses:fa2"
    # 2080 visible pairs of 64 tokens, 4 heads of 8, two products of 2 FLOP a number, on each of two ranks.
    assert rows[0].rate("sustained", "forward") == 2080 * 4 * 8 * 4 / 2 / 2.0


def test_the_record_has_throughputs_columns_and_all_samples(capsys, tmp_path):
    h5py = pytest.importorskip("h5py")
    path = World("cpu").roots(str(tmp_path / "peers.h5"))
    status, said = run([*SMALL, *QUICK, "--protocol", "both", "--output", path, "--systems", "ringlab", "ulysses",
                        "ulysses:cudnn"], capsys)
    dist.barrier()
    assert status == 0 and f"record: {path}" in said
    with h5py.File(path) as file:
        runs = file["runs"]
        text = {name: list(runs[name].asstr()) for name in ("system", "kind", "layout", "schedule", "absent", "mask")}
        assert text["system"] == ["ringlab", "ulysses", "ulysses:cudnn"]
        assert text["kind"] == ["ring", "peer", "peer"] and text["layout"] == ["zigzag", "contiguous", ""]
        assert text["schedule"] == ["ring", "ulysses", ""] and text["mask"] == ["causal"] * 3
        assert text["absent"][:2] == ["", ""] and "CUDA" in text["absent"][2]
        assert list(runs["tokens"]) == [64] * 3 and list(runs["ranks"]) == [2] * 3
        assert runs["flop_forward"][0] == 2080 * 4 * 8 * 4 and runs["flop_backward"][0] == 2.5 * runs["flop_forward"][0]
        for prefix in ("rate_", "burst_rate_"):
            rate, seconds = runs[prefix + "both"][()], runs[prefix + "both_seconds"][()]
            assert rate[:2] * seconds[:2] == pytest.approx([3.5 * runs["flop_forward"][0] / 2] * 2)
            assert math.isnan(rate[2])
        assert file["bursts/forward/seconds"].shape == (3, 10, 2)
        calls = file["calls/both/seconds"][0]
        turns = [max(turn[~numpy_isnan(turn).any(1)].mean(0)) for turn in calls]
        assert sum(turns) / 2 == pytest.approx(runs["rate_both_seconds"][0])  # the median of two
        assert all(0 <= runs[f"error_{name}"][0] < 1e-5 for name in judge.RESULTS)
        assert file["calls/both/seconds"].dims[3][0].name == "/gpu"
        assert file.attrs["experiment"] == "peers" and "tokens-per-rank = 32" in file.attrs["configuration"]
        provenance = file["provenance/0"].attrs
        assert provenance["command_line"].startswith("torchrun --nproc_per_node=2 -m ringlab.peers")
        assert re.fullmatch(r"unknown|[0-9a-f]{40}(\+dirty)?", provenance["commit"])
    with pytest.raises(WrongUse, match="it is there already; give another path"):
        peers.checked([*SMALL, *QUICK, "--output", path])


def numpy_isnan(array):
    import numpy
    return numpy.isnan(array)
