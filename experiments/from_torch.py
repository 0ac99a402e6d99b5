"""Inputs of Ringlab from a model that runs in PyTorch: Q, K, V and dO of one attention, in a file for --input.

    from from_torch import recorded_attention
    with recorded_attention("layer3.h5", call=3):
        model(**batch).loss.backward()

records the fourth call of torch.nn.functional.scaled_dot_product_attention within the block, which is what most models
call (those of transformers with attn_implementation="sdpa"). Whoever calls flash_attn or a kernel of their own has the
tensors at hand:

    save("layer3.h5", q, k, v, do, scale=scale, causal=True)       each (batch, token, head, dim)

    ./gradient_equivalence --input layer3.h5 --ranks 8
"""
import contextlib
import sys

import h5py
import numpy as np
import torch
import torch.nn.functional


def save(path, q, k, v, do=None, **attributes):
    """Writes tensors of shape (batch, token, head, dim), of bf16, fp16, fp32 or fp64, as a file for --input. Attributes
    that Ringlab reads: scale (1/sqrt(dim) without it), soft_cap. Without `do` a normal one is drawn."""
    with h5py.File(path, "w") as file:
        for name, tensor in (("q", q), ("k", k), ("v", v), ("do", do)):
            if tensor is None:
                continue
            tensor = tensor.detach().cpu().contiguous()
            if tensor.dim() != 4:
                raise ValueError(f"{name} is of shape {tuple(tensor.shape)}; it must be (batch, token, head, dim)")
            if tensor.dtype == torch.bfloat16:  # HDF5 has no such type: the bits, and a word on what they are
                file[name] = tensor.view(torch.int16).numpy().view(np.uint16)
                file[name].attrs["dtype"] = "bfloat16"
            else:
                file[name] = tensor.numpy()
        file.attrs.update({name: value for name, value in attributes.items() if value is not None})


def without_copies(heads):
    """Removes repeated kv heads from a (batch, head, token, dim) tensor. Some models repeat them, one for each query head."""
    count = heads.shape[1]
    for distinct in (d for d in range(1, count) if count % d == 0):
        kept = heads[:, :: count // distinct]
        if torch.equal(kept.repeat_interleave(count // distinct, dim=1), heads):
            return kept
    return heads


def causality(mask, rows, keys):
    """Which mask this is (True or 0 means visible): True for causal, False for full, None for anything else."""
    sees = (mask if mask.dtype == torch.bool else mask == 0).expand(*mask.shape[:-2], rows, keys)
    if sees.all():
        return False
    return True if (sees == torch.ones(rows, keys, dtype=torch.bool, device=mask.device).tril()).all() else None


@contextlib.contextmanager
def recorded_attention(path, call=0):
    """Writes q, k and v of the `call`-th attention within the block to `path`, and dO if its backward pass runs there too.
    Raises RuntimeError if there was no such call. Warns on standard error of everything that the file cannot hold."""
    original, seen, found = torch.nn.functional.scaled_dot_product_attention, 0, {}

    def attention(query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, **options):
        nonlocal seen
        out, causal = original(query, key, value, attn_mask, dropout_p, is_causal, **options), is_causal
        if seen == call:
            if query.dim() != 4 or query.shape[-2] != key.shape[-2]:
                raise RuntimeError(f"call {call} is of q {tuple(query.shape)} and k {tuple(key.shape)}; it must be (batch, "
                                   "head, token, dim) with as many rows as keys")
            if attn_mask is not None:
                causal = causality(attn_mask, query.shape[-2], key.shape[-2])
                if causal is None:
                    print(f"{path}: the mask is neither full nor causal and is not in the file; name it by --masks",
                          file=sys.stderr)
            if dropout_p > 0:
                print(f"{path}: dropout {dropout_p} was on; it is not in the file", file=sys.stderr)
            k, v = without_copies(key), without_copies(value)
            if k.shape[1] != v.shape[1]:  # by chance: a head of one is another's twin
                k, v = key, value
            found.update(q=query, k=k, v=v, causal=causal, scale=options.get("scale"))
            if out.requires_grad:
                out.register_hook(lambda gradient: found.update(do=gradient))
        seen += 1
        return out

    torch.nn.functional.scaled_dot_product_attention = attention
    try:
        yield
    finally:
        torch.nn.functional.scaled_dot_product_attention = original
    if not found:
        raise RuntimeError(f"there were {seen} calls of scaled_dot_product_attention, numbered from 0; call {call} is not "
                           "among them")
    tensors = {name: found[name].transpose(1, 2) for name in ("q", "k", "v", "do") if name in found}
    save(path, **tensors, scale=found["scale"], causal=found["causal"])
