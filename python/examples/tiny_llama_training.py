"""What train_tiny_llama.py is made of beside the ring: the text, and a model with its optimizer."""

import contextlib
import datetime
import os
import pathlib
import random
import statistics
import sys
import time

import torch


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
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step(self, loss_of):
        """Forward, backward and the optimizer's step; loss_of(model) calls backward. Returns the loss."""
        on_gpu = self.device.type == "cuda"
        if on_gpu:
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
        held, begin = torch.cuda.memory_allocated() if on_gpu else 0, time.perf_counter()
        with torch.autocast("cuda", torch.bfloat16) if on_gpu else contextlib.nullcontext():
            loss = loss_of(self.model)
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses.append(loss.item())
        self.seconds.append(time.perf_counter() - begin)
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() - held if on_gpu else 0)
        return self.losses[-1]

    def summary(self, name):
        return (f"{name}: {1e3 * statistics.median(self.seconds):.1f} ms a step, "
                f"peak memory of a step {self.peak / 2**20:.0f} MiB")


def save(path, options, trained):
    """Writes losses, seconds and peak memory of every step to an HDF5 file; trained: {name: Trained}."""
    import h5py
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    with h5py.File(path, "w") as file:
        file.attrs.update({"experiment": "train_tiny_llama", "configuration": str(vars(options))})
        file.create_group("provenance/0").attrs.update({
            "command_line": " ".join(["train_tiny_llama.py", *sys.argv[1:]]), "torch": str(torch.__version__),
            "devices": ", ".join(gpus), "date": datetime.datetime.now(datetime.timezone.utc).isoformat("T", "seconds")})
        file.create_dataset("name", data=list(trained), dtype=h5py.string_dtype())
        for column, unit in (("losses", "nats of a token"), ("seconds", "s"), ("peak", "bytes that a step adds")):
            file[column] = [getattr(one, column) for one in trained.values()]
            file[column].attrs["unit"] = unit
