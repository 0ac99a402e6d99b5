"""What train_tiny_llama.py is made of beside the ring: the text, and a model with its optimizer."""

import contextlib
import os
import pathlib
import random
import statistics
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


class Trained:
    """A model, its optimizer, and what its steps took."""

    def __init__(self, model, device):
        self.model, self.device, self.seconds, self.peak = model, device, [], 0
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
        value = loss.item()
        self.seconds.append(time.perf_counter() - begin)
        self.peak = max(self.peak, torch.cuda.max_memory_allocated() - held if on_gpu else 0)
        return value

    def summary(self, name):
        return (f"{name}: {1e3 * statistics.median(self.seconds):.1f} ms a step, "
                f"peak memory of a step {self.peak / 2**20:.0f} MiB")
