"""What train_tiny_llama.py is made of beside the ring: its options, the text, a model with its optimizer, and records."""

import argparse
import contextlib
import datetime
import os
import pathlib
import random
import statistics
import sys
import time

import torch
import torch.distributed as dist

import ringlab

# The model: hidden size, size of the MLP, layers, heads, key-value heads; and tokens of a sequence.
SIZES = {"cpu": (64, 128, 2, 4, 2, 512), "cuda": (1024, 2816, 4, 8, 2, 8192)}


def arguments(description):
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=SIZES, default="cpu", help="[cpu]")
    parser.add_argument("--steps", type=int, default=20, help="[20]")
    parser.add_argument("--tokens", type=int, help="of a sequence, over all processes [512, with --device cuda 8192]")
    parser.add_argument("--layout", default="zigzag", help="[zigzag]")
    parser.add_argument("--schedule", default="ring", help="[ring]")
    parser.add_argument("--output", help="losses, times and memory of the steps, as HDF5 (needs h5py)")
    parser.add_argument("--timeline", metavar="FILE.h5", help="attention of the second step, measured and predicted")
    parser.add_argument("--machines", nargs="+", default=["8xh100"], help="that --timeline predicts for [8xh100]")
    return parser.parse_args()


def sequences(tokens):
    """Byte sequences of documents, packed until they are full, and where each document ends."""
    files = sorted(path for path in pathlib.Path(os.__file__).parent.glob("*.py") if path.stat().st_size > 0)
    texts = [path.read_bytes() for path in files]
    draw = random.Random(0)  # the same on every rank
    while True:
        packed, ends = b"", [0]
        while len(packed) < tokens:
            text = draw.choice(texts)
            start = draw.randrange(len(text))
            packed += text[start:start + draw.randint(1, tokens // 3)][:tokens - len(packed)]
            ends.append(len(packed))
        yield torch.tensor([list(packed)]), torch.tensor(ends, dtype=torch.int32)


def token_losses(logits, labels):
    return torch.nn.functional.cross_entropy(logits.transpose(1, 2), labels, ignore_index=-100, reduction="none")


class Trained:
    """A model, its optimizer, and what its steps took."""

    def __init__(self, model, device):
        self.model, self.device = model, device
        self.losses, self.seconds, self.peak = [], [], 0
        self.gradients, self.gradient_error = [], 0.0  # of the first step
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, loss_of):
        """Forward, backward and the optimizer's step; loss_of(model) calls backward. Returns the loss."""
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        held, begin = torch.cuda.memory_allocated() if on_gpu else 0, time.perf_counter()
        in_bf16 = next(self.model.parameters()).dtype == torch.float32
        with torch.autocast("cuda", torch.bfloat16) if in_bf16 else contextlib.nullcontext():
            loss = loss_of(self.model)
        if not self.losses:
            self.gradients = [parameter.grad.clone() for parameter in self.model.parameters()]
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - begin)
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() - held if on_gpu else 0)
        return self.losses[-1]

    def summary(self, name):
        return (f"{name}: {1e3 * statistics.median(self.seconds):.1f} ms a step, "
                f"peak memory of a step {self.peak / 2**20:.0f} MiB")


def judge_gradients(exact, trained):
    """Sets gradient_error of each of `trained`, {name: Trained}: how far its first gradients are from those of `exact`, as
    the root mean square of the error of a parameter over that of its gradient, in the mean over parameters."""
    for name, one in trained.items():
        errors = [((mine - right).norm() / right.norm()).item() for mine, right in zip(one.gradients, exact.gradients)]
        one.gradient_error = statistics.mean(errors)
        print(f"{name}: gradients are off by {one.gradient_error:.2e} in the mean over parameters, {max(errors):.2e} at most")


@contextlib.contextmanager
def timeline(options, step):
    """Records the attention of the second step, if --timeline asks for it."""
    if not options.timeline or step != 1:
        yield
        return
    machines = options.machines if options.device == "cuda" else []  # which predict no float64
    with ringlab.record(options.timeline, machines=machines, overwrite=True) as recording:
        yield
    if dist.get_rank() == 0:
        print(recording.text)


def save(path, options, trained):
    """Writes losses, seconds and peak memory of every step, and errors of gradients, to HDF5; trained: {name: Trained}."""
    import h5py
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    with h5py.File(path, "w") as file:
        file.attrs.update({"experiment": "train_tiny_llama", "configuration": str(vars(options))})
        file.create_group("provenance/0").attrs.update({
            "command_line": " ".join(["train_tiny_llama.py", *sys.argv[1:]]), "torch": str(torch.__version__),
            "devices": ", ".join(gpus), "commit": ringlab.commit(), "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")})
        file.create_dataset("name", data=list(trained), dtype=h5py.string_dtype())
        for column, unit in (("losses", "nats of a token"), ("seconds", "s"), ("peak", "bytes that a step adds"),
                             ("gradient_error", "of the gradient, relative RMS")):
            file[column] = [getattr(one, column) for one in trained.values()]
            file[column].attrs["unit"] = unit
