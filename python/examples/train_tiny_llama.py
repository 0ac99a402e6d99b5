"""Trains a small Llama on the text of Python's standard library, each sequence of packed documents over all processes:

    python -m torch.distributed.run --nproc_per_node=2 python/examples/train_tiny_llama.py --steps 20
    python -m torch.distributed.run --nproc_per_node=2 python/examples/train_tiny_llama.py --device cuda --steps 200

Rank 0 trains the same model alone as well, by PyTorch's own attention over the whole sequence. The losses are compared at
each step. On CPUs, in float64, they may differ by TOLERANCE, relative. On GPUs, in bfloat16, rank 0 trains it once with
each of PyTorch's KERNELS, and the ring's loss may differ from their mean by twice the largest spread among them so far.

The gradients of the first step are compared with those of the same model in float64. On GPUs the ring's may be as far off
as twice the worst of the KERNELS.
"""

import copy
import os
import statistics

import torch
import torch.distributed as dist
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

import ringlab.transformers
from ringlab.torch import loss_weights, next_token_labels, positions, shard
from tiny_llama_training import SIZES, Trained, arguments, judge_gradients, save, sequences, timeline, token_losses

# Both models do the same sums in another order: gradients differ by about 1e-15 of the largest. Adam divides each by
# its own size, so that where a gradient nearly vanishes its weight's step of `lr` may differ by more: by 1e-15 over the
# gradient's share of the largest. At a share of 1e-6 that is 1e-9 of lr, in each of the steps.
TOLERANCE = 1e-9
KERNELS = [SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION]


def main():
    options = arguments(__doc__)
    hidden, mlp, layers, heads, kv_heads, tokens = SIZES[options.device]
    tokens = options.tokens or tokens
    device = torch.device(options.device)
    own_gpus = device.type == "cuda" and int(os.environ["LOCAL_WORLD_SIZE"]) <= torch.cuda.device_count()
    if device.type == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("cpu:gloo,cuda:nccl" if own_gpus else "gloo")
    torch.manual_seed(0)
    torch.set_default_dtype(torch.float64 if device.type == "cpu" else torch.float32)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=256, hidden_size=hidden, intermediate_size=mlp, num_hidden_layers=layers, num_attention_heads=heads,
        num_key_value_heads=kv_heads, max_position_embeddings=tokens, use_cache=False)).to(device)
    kernels = (KERNELS if device.type == "cuda" else KERNELS[:1]) if dist.get_rank() == 0 else []
    alone = [Trained(copy.deepcopy(model), device) for _ in kernels]
    exact = Trained(copy.deepcopy(model).double(), device) if alone else None
    ringlab.transformers.use(model, layout=options.layout, schedule=options.schedule)
    ring = Trained(model, device)
    trained = {f"ring of {dist.get_world_size()}": ring, **{k.name: one for k, one in zip(kernels, alone)}}

    spread, worst = 0.0, 0.0  # worst: of what is allowed
    for step, (ids, cu_seqlens) in zip(range(options.steps), sequences(tokens)):
        # 1. The whole sequence's labels and positions, then this rank's part of everything.
        labels = next_token_labels(ids, cu_seqlens=cu_seqlens)
        where = {"mask": "causal", "layout": options.layout, "cu_seqlens": cu_seqlens}
        own_ids, own_labels = shard(ids, **where).to(device), shard(labels, **where)
        own_positions = positions(tokens, documents=True, **where)[None].to(device)
        weights, own_labels = loss_weights(own_labels).to(device), own_labels.to(device)

        # 2. Forward and backward over the ring. Weighted losses add up to the mean over the sequence, gradients too.
        def over_the_ring(model):
            logits = model(input_ids=own_ids, position_ids=own_positions, cu_seqlens=cu_seqlens).logits
            loss = (token_losses(logits, own_labels) * weights).sum()
            loss.backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
            total = loss.detach()
            dist.all_reduce(total)
            return total

        with timeline(options, step):
            total = ring.step(over_the_ring)

        # 3. The same on one process. transformers finds the documents in the position ids of the whole sequence.
        def on_one(model):
            everywhere = torch.cat([torch.arange(length) for length in cu_seqlens.diff()])[None]
            losses = token_losses(model(input_ids=ids.to(device), position_ids=everywhere.to(device)).logits,
                                  labels.to(device))
            loss = losses[labels.to(device) != -100].mean()
            loss.backward()
            return loss.detach()

        expected = []
        for one, kernel in zip(alone, kernels):
            with sdpa_kernel(kernel):
                expected.append(one.step(on_one))
        if exact and step == 0:
            with sdpa_kernel(SDPBackend.MATH):
                exact.step(on_one)
            judge_gradients(exact, trained)
            allowed = 2 * max(one.gradient_error for one in alone) if device.type == "cuda" else TOLERANCE
            worst, exact = ring.gradient_error / allowed, None
        if expected:
            mean = statistics.mean(expected)
            spread = max(spread, max(expected) - min(expected))
            allowed = 2 * spread if device.type == "cuda" else TOLERANCE * mean
            apart = abs(total - mean) / allowed
            worst = worst if apart <= worst else apart  # so that NaN stays
            print(f"step {step:3}  loss {total:.12f}  alone {' '.join(f'{one:.12f}' for one in expected)}  "
                  f"apart {abs(total - mean):.1e} of {allowed:.1e}", flush=True)

    if alone:
        print("\n".join(one.summary(name) for name, one in trained.items()))
        if options.output:
            save(options.output, options, trained)
    # 4. All ranks end alike.
    verdict = torch.tensor([worst])
    dist.broadcast(verdict, 0)
    dist.destroy_process_group()
    if not verdict.item() <= 1:
        raise SystemExit(f"the losses of ring and one process are apart by {verdict.item():.2f} of what is allowed")


if __name__ == "__main__":
    main()
