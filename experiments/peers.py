#!/usr/bin/env python3
"""Times other systems' attention kernels on one GPU, in turns, as `throughput --ranks 1` times ours.

    peers.py OUTPUT.h5 --peers fa4 cudnn fa2 --protocol sustained burst
    peers.py OUTPUT.h5 --cells "32:8/128 causal 8192" "64:8/128 full 8192"

A cell is a shape (HEADS/DIM or HEADS/DIM-VALUE_DIM), a mask and a number of tokens. Peers:
  fa4    FlashAttention-4's CuTe kernels, Hopper's on Hopper (Python package flash-attn-4)
  cudnn  cuDNN's attention, as PyTorch loads it
  fa2    FlashAttention-2's kernels, as PyTorch has them: the instructions of Ampere

Before a cell is timed, outputs and gradients of all peers are compared; one that differs is named and not timed. Where a
peer cannot do a cell, its own words say why. Run it in turns with throughput in one session on one GPU: cuDNN is in
both, and tells how alike the two were. The record has throughput's columns, one run for each cell and peer, with
kind "peer" and the peer's name under "kernels".
"""
import argparse
import datetime
import math
import pathlib
import platform
import shlex
import subprocess
import sys
import time

import h5py
import numpy
import torch

aten = torch.ops.aten
DEVICE = torch.device("cuda", 0)
DOCUMENTS = ("causal+documents:3584,256,1344,1792,2688,2816,1856,704,1856,4224,1024,512,896,4672,704,2176,768,128,768")
CELLS = [f"{shape} {mask} {tokens}"
         for shape, which in (
             ("32:8/128", (("causal", (1024, 2048, 4096, 8192, 16384, 32768)), ("full", (8192,)),
                           ("window:4096,0", (32768,)), (DOCUMENTS, (32768,)))),
             ("64:8/128", (("causal", (1024, 2048, 8192, 16384, 32768)), ("full", (8192,)))),
             ("32:32/128", (("causal", (8192,)), ("full", (8192,)))),
             ("32:8/64", (("causal", (8192,)), ("full", (8192,)))),
             ("32:8/192-128", (("causal", (8192,)), ("full", (8192,)))),
             ("32:8/256", (("causal", (8192,)), ("full", (8192,)))))
         for mask, lengths in which for tokens in lengths]


class Cell:
    """What is timed: heads, dims, mask and tokens."""

    def __init__(self, text):
        self.shape, self.mask, tokens = text.split()
        heads, dims = self.shape.split("/")[:2]
        self.query_heads, self.kv_heads = map(int, (heads if ":" in heads else f"{heads}:{heads}").split(":"))
        self.head_dim, self.value_dim = map(int, (dims if "-" in dims else f"{dims}-{dims}").split("-"))
        self.tokens = int(tokens)
        self.window, self.documents = None, None
        self.causal = self.mask != "full"
        if self.mask.startswith("window:"):
            left, right = map(int, self.mask[len("window:"):].split(","))
            if right != 0:
                raise SystemExit(f"peers.py: the mask {self.mask} looks ahead; a window must be LEFT,0")
            self.window = left
        elif self.mask.startswith("causal+documents:"):
            self.documents = list(map(int, self.mask[len("causal+documents:"):].split(",")))
            if sum(self.documents) != self.tokens:
                raise SystemExit(f"peers.py: documents of {sum(self.documents)} tokens, the cell has {self.tokens}")
        elif self.mask not in ("full", "causal"):
            raise SystemExit(f"peers.py: no mask {self.mask}; full, causal, window:LEFT,0 or causal+documents:LENGTHS")

    def name(self):
        return f"{self.shape} {self.mask} S={self.tokens}"

    def pairs(self):
        """Visible pairs of a query row and a key."""
        n = self.tokens
        if self.documents:
            return sum(d * (d + 1) // 2 for d in self.documents)
        if self.window is not None:  # the row's own key and the last `window` before it
            w = min(self.window, n - 1)
            return n * (w + 1) - w * (w + 1) // 2
        return n * (n + 1) // 2 if self.causal else n * n

    def flop(self, is_forward):
        d, v = self.head_dim, self.value_dim
        return self.pairs() * self.query_heads * (2 * (d + v) if is_forward else 2 * (3 * d + 2 * v))

    def tensors(self):
        """q, k, v and dout, each (1, tokens, heads, dim); every peer gets the same numbers."""
        generator = torch.Generator(device=DEVICE)
        generator.manual_seed(3)
        return [torch.randn(1, self.tokens, heads, dim, device=DEVICE, dtype=torch.bfloat16, generator=generator)
                for heads, dim in ((self.query_heads, self.head_dim), (self.kv_heads, self.head_dim),
                                   (self.kv_heads, self.value_dim), (self.query_heads, self.value_dim))]

    def offsets(self):
        starts = [0]
        for document in self.documents:
            starts.append(starts[-1] + document)
        return torch.tensor(starts, device=DEVICE, dtype=torch.int32)


# Each peer: forward() -> (o, what backward needs besides), backward(o, rest) -> (dq, dk, dv), all as
# (1, tokens, heads, dim) or (tokens, heads, dim).

def fa4(cell, q, k, v, dout):
    from flash_attn.cute.interface import _flash_attn_bwd, _flash_attn_fwd
    mask = {"causal": cell.causal and cell.window is None}
    if cell.window is not None:
        mask.update(window_size_left=cell.window, window_size_right=0)
    if cell.documents:
        q, k, v, dout = q[0], k[0], v[0], dout[0]
        longest, offsets = max(cell.documents), cell.offsets()
        mask.update(cu_seqlens_q=offsets, cu_seqlens_k=offsets, max_seqlen_q=longest, max_seqlen_k=longest)

    def forward():
        return _flash_attn_fwd(q, k, v, return_lse=True, **mask)[:2]

    def backward(o, lse):
        return _flash_attn_bwd(q, k, v, o, dout, lse, **mask)[:3]

    return forward, backward


def cudnn(cell, q, k, v, dout):
    if cell.window is not None or cell.documents:
        raise NotImplementedError("PyTorch gives cuDNN's attention no window and no packed documents")
    q, k, v, dout = (x.transpose(1, 2) for x in (q, k, v, dout))
    zero = torch.zeros((), dtype=torch.int64, device=DEVICE)

    def forward():
        o, lse, *_ = aten._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, cell.causal, False)
        return o.transpose(1, 2), lse

    def backward(o, lse):
        gradients = aten._scaled_dot_product_cudnn_attention_backward(
            dout, q, k, v, o.transpose(1, 2), lse, zero, zero, None, None, None, cell.tokens, cell.tokens, 0.0,
            cell.causal)
        return [x.transpose(1, 2) for x in gradients]

    return forward, backward


def fa2(cell, q, k, v, dout):
    if cell.head_dim != cell.value_dim:
        raise NotImplementedError("FlashAttention-2 has one dim for keys and values")
    offsets, longest, mask = None, cell.tokens, {}
    if cell.documents:
        q, k, v, dout = q[0], k[0], v[0], dout[0]
        longest, offsets = max(cell.documents), cell.offsets()
    if cell.window is not None:
        mask = {"window_size_left": cell.window, "window_size_right": 0}
    causal = cell.causal and cell.window is None

    def forward():
        o, lse, seed, offset, _ = aten._flash_attention_forward(q, k, v, offsets, offsets, longest, longest, 0.0,
                                                                causal, False, **mask)
        forward.random = seed, offset
        return o, lse

    def backward(o, lse):
        return aten._flash_attention_backward(dout, q, k, v, o, lse, offsets, offsets, longest, longest, 0.0, causal,
                                              *forward.random, **mask)[:3]

    return forward, backward


PEERS = {"fa4": fa4, "cudnn": cudnn, "fa2": fa2}


def driver_and_clock():
    """The driver's version and the SM clock in MHz now; "unknown" and 0 without NVML."""
    try:
        import pynvml
        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        return pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlDeviceGetClockInfo(handle, pynvml.NVML_CLOCK_SM)
    except Exception as error:  # of a kind that only the missing package knows
        print(f"no NVML: {error}", file=sys.stderr)
        return "unknown", 0


class Pass:
    """One direction of one peer in one cell: a CUDA graph, so that no launch from Python is timed."""

    def __init__(self, peer, direction, call, refresh):
        self.peer, self.direction, self.refresh = peer, direction, refresh
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for _ in range(2):
                call()
        torch.cuda.current_stream().wait_stream(stream)
        torch.cuda.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.kept = call()
        self.call = self.graph.replay
        self.rounds, self.burst = [], []


def words(error):
    """The first line of an exception."""
    return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"


def prepare(name, cell, tensors):
    """Results of a peer for comparison, its passes, and the reason why it has no backward pass ("" if it has one)."""
    forward, backward = PEERS[name](cell, *tensors)
    o, rest = forward()
    results, why_not = [o], ""
    try:
        results += backward(o, rest)
    except Exception as error:  # whatever a peer's own checks raise is why it is missing
        why_not = "backward: " + words(error)

    def draw():
        for tensor in tensors:
            tensor.normal_()

    def draw_and_attend():
        draw()
        new_o, new_rest = forward()
        o.copy_(new_o)
        rest.copy_(new_rest)

    passes = [Pass(name, "forward", forward, draw)]
    if not why_not:
        passes.append(Pass(name, "backward", lambda: backward(o, rest), draw_and_attend))
    return [x.reshape(-1, *x.shape[-2:]).float() for x in results], passes, why_not


def difference(results, others):
    """The largest relative RMS difference of o, dq, dk, dv."""
    return max(float((a - b).norm() / b.norm()) for a, b in zip(results, others))


def times(call, count):
    """Seconds of `count` calls in a row, each."""
    events = [torch.cuda.Event(enable_timing=True) for _ in range(count + 1)]
    events[0].record()
    for event in events[1:]:
        call()
        event.record()
    torch.cuda.synchronize()
    return [a.elapsed_time(b) * 1e-3 for a, b in zip(events, events[1:])]


def time_bursts(passes, rest=0.02, count=10):
    """Times single passes of the peers in turns. Before each pass, inputs are drawn anew, L2 is cleared, and the host has
    enqueued everything before the device reaches the pass."""
    l2 = torch.cuda.get_device_properties(DEVICE).L2_cache_size
    other = torch.empty(8 * l2, dtype=torch.uint8, device=DEVICE)
    for i in range(count):
        for one in passes:
            torch.cuda.synchronize()
            time.sleep(rest)
            torch.cuda._sleep(1_000_000)  # cycles: half a millisecond for the host to run ahead
            one.refresh()
            other.fill_(i)
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            one.call()
            end.record()
            torch.cuda.synchronize()
            one.burst.append(begin.elapsed_time(end) * 1e-3)


def time_sustained(passes, seconds, warm_up, rounds=5):
    """Times calls of the peers back to back, in turns; the first third of each turn is not counted."""
    counts = []
    for one in passes:
        once = sorted(times(one.call, 3))[1]
        counts.append(min(300, max(6, math.ceil(seconds / rounds / once))))
    start = time.perf_counter()
    while time.perf_counter() - start < warm_up:
        times(passes[0].call, counts[0])
    for _ in range(rounds):
        for one, count in zip(passes, counts):
            one.rounds.append(times(one.call, count)[count // 3:])


def typical(values):
    """The median, and the distance of the quartiles divided by it."""
    low, middle, high = numpy.quantile(values, [0.25, 0.5, 0.75])
    return float(middle), float((high - low) / middle)


def typical_of_rounds(rounds):
    return typical([typical(values)[0] for values in rounds])


def columns(cell, passes):
    """Throughput's columns of one peer, and its raw samples."""
    values, samples = {}, {}
    for one in passes:
        flop = cell.flop(one.direction == "forward")
        for prefix, times_of, summary in (("rate_", one.rounds, typical_of_rounds),
                                          ("burst_rate_", one.burst, lambda burst: typical(burst[len(burst) // 2:]))):
            if times_of:
                seconds, spread = summary(times_of)
                values[prefix + one.direction] = flop / seconds, "FLOP/s"
                values[prefix + one.direction + "_seconds"] = seconds, "s"
                values[prefix + one.direction + "_spread"] = spread, "1"
        if one.rounds:
            samples[f"calls/{one.direction}/seconds"] = one.rounds
        if one.burst:
            samples[f"bursts/{one.direction}/seconds"] = [one.burst]
    return values, samples


def commit():
    """Commit of this script, with "+dirty" if files have changed; "unknown" without git or a repository."""
    def git(*words):
        return subprocess.run(["git", "-C", pathlib.Path(__file__).parent, *words], capture_output=True, text=True,
                              check=True).stdout.strip()
    try:
        return git("rev-parse", "HEAD") + ("+dirty" if git("status", "--porcelain", "--untracked-files=no") else "")
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


def provenance(arguments):
    def version(package):
        from importlib import metadata
        try:
            return metadata.version(package)
        except metadata.PackageNotFoundError:
            return "none"

    driver, clock = driver_and_clock()
    return {"begin": datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds"),
            "command": shlex.join(sys.argv), "commit": commit(), "gpu": torch.cuda.get_device_name(DEVICE), "driver": str(driver),
            "torch": str(torch.__version__), "cudnn": str(torch.backends.cudnn.version()),
            "cuda": str(torch.version.cuda), "python": platform.python_version(),
            "flash_attn_4": version("flash-attn-4"), "nvidia_cutlass_dsl": version("nvidia-cutlass-dsl"),
            "sm_clock_idle_mhz": clock, "seconds": arguments.seconds, "warm_up": arguments.warm_up}


def write(path, runs, about, protocols):
    """A record of Ringlab's schema: columns over runs, raw samples padded with NaN."""
    with h5py.File(path, "w") as file:
        file.attrs["ringlab_schema"] = 3
        file.attrs["experiment"] = "peers"
        file.attrs["description"] = "Other systems' attention kernels on one GPU, in turns"
        file.attrs["configuration"] = "".join(f"{k} = {v}\n" for k, v in (
            ("protocol", " ".join(protocols)), ("repeat_seconds", about["seconds"])))
        for key, value in about.items():
            file.require_group("provenance/0").attrs[key] = value
        text = h5py.string_dtype()
        scale = file.create_dataset("run", data=[name for name, *_ in runs], dtype=text)
        scale.make_scale("run")

        def column(name, values, units, kind=None):
            dataset = file.create_dataset("runs/" + name, data=values, dtype=kind)
            dataset.attrs["units"], dataset.attrs["description"] = units, "see throughput"
            dataset.dims[0].attach_scale(scale)

        for name in ("kind", "shape", "mask", "kernels", "layout", "algorithm", "absent"):
            column(name, [labels.get(name, "") for _, labels, *_ in runs], "1", text)
        column("name", [name for name, *_ in runs], "1", text)
        for name in ("tokens", "ranks", "gpus"):
            column(name, [labels[name] for _, labels, *_ in runs], "1")
        units = {name: unit for _, _, values, _ in runs for name, (_, unit) in values.items()}
        for name, unit in units.items():
            column(name, [values.get(name, (math.nan,))[0] for _, _, values, _ in runs], unit)
        for name in sorted({name for *_, samples in runs for name in samples}):
            given = [samples.get(name, []) for *_, samples in runs]
            size = (max(len(rows) for rows in given), max(len(row) for rows in given for row in rows))
            padded = numpy.full((len(runs), *size), numpy.nan)
            for i, rows in enumerate(given):
                for j, row in enumerate(rows):
                    padded[i, j, :len(row)] = row
            dataset = file.create_dataset(name, data=padded, compression="gzip")
            dataset.attrs["units"], dataset.attrs["description"] = "s", "device time of one call"


def time_cell(cell, arguments):
    """Runs of the record: (name, labels, columns, samples) for each peer."""
    tensors = cell.tensors()
    passes, absent, reference = {}, {}, None
    for name in arguments.peers:
        try:
            results, found, why_not = prepare(name, cell, tensors)
            reference = reference or results
            off = difference(results, reference)
            if not off < 0.02:  # two roundings to bf16, of o and of P or dS, are below 0.01
                raise ArithmeticError(f"differs from {next(iter(passes))} by {off:.3g}, relative RMS")
            passes[name] = found
            if why_not:
                absent[name] = why_not
        except Exception as error:
            absent[name] = words(error)
    del reference
    timed = [one for direction in ("forward", "backward") for found in passes.values() for one in found
             if one.direction == direction]
    if not arguments.check and timed:
        if "burst" in arguments.protocol:
            time_bursts(timed)
        if "sustained" in arguments.protocol:
            time_sustained(timed, arguments.seconds, arguments.warm_up)
    for name in arguments.peers:
        labels = {"kind": "peer", "shape": cell.shape + "/bf16", "mask": cell.mask, "kernels": name,
                  "layout": "contiguous", "algorithm": "none", "absent": absent.get(name, ""),
                  "tokens": cell.tokens, "ranks": 1, "gpus": 1}
        values, samples = columns(cell, passes[name]) if name in passes else ({}, {})
        shown = " ".join(f"{key}={values[key][0] * scale:.{digits}f}" for key, scale, digits in (
            ("rate_forward", 1e-12, 0), ("rate_backward", 1e-12, 0), ("burst_rate_forward", 1e-12, 0),
            ("burst_rate_backward", 1e-12, 0)) if key in values)
        print(f"{name:6} {cell.name()[:60]:60} {shown} {absent.get(name, '' if shown else 'agrees')[:120]}", flush=True)
        yield f"peer {name} {cell.name()}".replace("/", "_"), labels, values, samples


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", metavar="OUTPUT.h5")
    parser.add_argument("--peers", nargs="+", choices=PEERS, default=["cudnn", "fa4", "fa2"])
    parser.add_argument("--cells", nargs="+", default=CELLS, metavar="'SHAPE MASK TOKENS'")
    parser.add_argument("--protocol", nargs="+", choices=["sustained", "burst"], default=["sustained"])
    parser.add_argument("--seconds", type=float, default=0.75, help="of device time for each pass, sustained")
    parser.add_argument("--warm-up", type=float, default=0.5, help="seconds before each cell, sustained")
    parser.add_argument("--check", action="store_true", help="compare results, time nothing; fills FlashAttention-4's cache")
    parser.add_argument("--stop-after", type=float, default=math.inf, metavar="SECONDS", help="begin no cell after that")
    arguments = parser.parse_args()
    runs, begin = [], time.perf_counter()
    about = provenance(arguments)
    for text in arguments.cells:
        if time.perf_counter() - begin > arguments.stop_after:
            print(f"time is up: {text} and what follows were not timed", flush=True)
            break
        cell = Cell(text)
        runs += time_cell(cell, arguments)
        torch.cuda.empty_cache()
        if not arguments.check:
            write(arguments.output, runs, about, arguments.protocol)
    return 0


if __name__ == "__main__":
    sys.exit(main())
