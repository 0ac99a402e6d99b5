"""Trains a small Llama on the text of Python's standard library, each sequence of packed documents over all processes:

    python -m torch.distributed.run --nproc_per_node=2 python/examples/train_tiny_llama.py --steps 20

Rank 0 trains the same model alone as well, by PyTorch's own attention over the whole sequence, and the two losses are
compared at each step: in float64 they may differ by TOLERANCE, relative.
"""

import argparse
import copy
import os
import pathlib
import random

import torch
import torch.distributed as dist
from transformers import LlamaConfig, LlamaForCausalLM

import ringlab.transformers
from ringlab.torch import loss_weights, next_token_labels, positions, shard

# Both models do the same sums in another order: gradients differ by about 1e-15 of the largest. Adam divides each by
# its own size, so that where a gradient nearly vanishes its weight's step of `lr` may differ by more: by 1e-15 over the
# gradient's share of the largest. At a share of 1e-6 that is 1e-9 of lr, in each of the steps.
TOLERANCE = 1e-9


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--tokens", type=int, default=512, help="of a sequence, over all processes")
    parser.add_argument("--layout", default="zigzag")
    parser.add_argument("--schedule", default="ring")
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


def main():
    options = arguments()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=2, use_cache=False))
    alone = copy.deepcopy(model) if dist.get_rank() == 0 else None
    ringlab.transformers.use(model, layout=options.layout, schedule=options.schedule)

    optimizers = [torch.optim.AdamW(one.parameters(), lr=1e-3) for one in (model, alone) if one is not None]
    worst = 0.0
    for step, (ids, cu_seqlens) in zip(range(options.steps), sequences(options.tokens)):
        # 1. The whole sequence's labels and positions, then this rank's part of everything.
        labels = next_token_labels(ids, cu_seqlens=cu_seqlens)
        where = {"layout": options.layout, "cu_seqlens": cu_seqlens}
        own_labels = shard(labels, **where)
        own_positions = positions(options.tokens, documents=True, **where)[None]

        # 2. Forward and backward over the ring. Weighted losses add up to the mean over the sequence, gradients too.
        logits = model(input_ids=shard(ids, **where), position_ids=own_positions, cu_seqlens=cu_seqlens).logits
        loss = (token_losses(logits, own_labels) * loss_weights(own_labels)).sum()
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        total = loss.detach()
        dist.all_reduce(total)

        # 3. The same on one process. transformers finds the documents in the position ids of the whole sequence.
        if alone is not None:
            everywhere = torch.cat([torch.arange(length) for length in cu_seqlens.diff()])[None]
            losses = token_losses(alone(input_ids=ids, position_ids=everywhere).logits, labels)
            expected = losses[labels != -100].mean()
            expected.backward()
            off = abs(total.item() / expected.item() - 1)
            worst = max(worst, off)
            print(f"step {step:3}  loss {total.item():.12f}  alone {expected.item():.12f}  apart {off:.1e}", flush=True)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    # 4. All ranks end alike.
    verdict = torch.tensor([worst])
    dist.broadcast(verdict, 0)
    dist.destroy_process_group()
    if not verdict.item() <= TOLERANCE:
        raise SystemExit(f"the losses of ring and one process are {verdict.item():.1e} apart, more than {TOLERANCE}")


if __name__ == "__main__":
    main()
