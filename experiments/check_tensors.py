#!/usr/bin/env python3
"""Computes attention again from files of --save-tensors, and compares it with the results in each file. It needs no code of
Ringlab: only NumPy and h5py or, with --by torch, PyTorch's own attention and automatic gradients.

    python3 experiments/check_tensors.py FILE.h5... [--tolerance T] [--by torch]

For every row i and query head h, over the keys j that row i sees:

    s_j = scale * q_i.k_j   (soft-capped: c*tanh(s_j/c))    lse = log sum_j exp(s_j)    p_j = exp(s_j - lse)
    o = sum_j p_j v_j       ds_j = p_j * (do.v_j - do.o)    (soft-capped: times 1 - (s_j/c)^2)
    dq = scale * sum_j ds_j k_j        dk_j += scale * ds_j q_i        dv_j += p_j do

all in float64. Where the file has sinks, learned logits of the heads, exp(sink) is in the sum of lse, and
dsink = -sum_i exp(sink - lse_i) do_i.o_i. Where it says that p is dropped out, o, dv and the dp = do.v in ds have d_j p_j and
d_j dp_j, with d_j = 0 or 1/(1 - rate) by the generator Philox4x32-7. Where the file has a latent (RANK+SHARED: multi-head
latent attention), k and v are its numbers c_j and the matrices W of each head: k_j = (W_k c_j, shared numbers) and v_j =
W_v c_j, rounded to their type; dk and dv are the gradients of these numbers and matrices. Where the file says that q and k
are rotated (rotary embedding), they are rotated and rounded first, and dq and dk are rotated back at the end.

Prints the error of each result, relative to the norm and to the largest element of what was expected. Exits with 1 if a
norm is off by more than the tolerance in any file.
"""
import argparse
import importlib.util
import pathlib
import sys

import h5py
import numpy as np

ROWS = 256  # rows at a time: memory stays at ROWS x tokens
TOLERANCE = {"fp64": 1e-12, "fp32": 1e-5, "fp16": 2e-3, "bf16": 1e-2}  # by the arithmetic of the outputs


def tensor(file, name):
    data = file[name][()]
    if file[name].attrs.get("dtype") == "bfloat16":  # bit patterns: the upper half of a float32
        data = (data.astype(np.uint32) << 16).view(np.float32)
    return data.astype(np.float64)


def rotated(file, name, x, back=False):
    """Rotary embedding of q or k, or its transpose for dq or dk. Shapes are (batch, token, head, dim)."""
    position = file["rotary_position"][()]
    if name in ("q", "dq") and "row_position" in file:
        position = position[file["row_position"][()]]
    angle = position[:, None] * file["rotary_frequency"][()][None, :]
    turn = file.attrs["rotary_amplitude"] * np.exp(-1j * angle if back else 1j * angle)[None, :, None, :]
    first, second = file["rotary_first_dim"][()], file["rotary_second_dim"][()]
    turned, out = turn * (x[..., first] + 1j * x[..., second]), x.copy()
    out[..., first], out[..., second] = turned.real, turned.imag
    return out


def rounded(x, dtype):
    """Rounds to the nearest number of a type, ties to even."""
    if dtype != "bf16":
        return x.astype({"fp16": np.float16, "fp32": np.float32, "fp64": np.float64}[dtype]).astype(np.float64)
    step = 2.0 ** (np.frexp(x)[1] - 8)
    return np.rint(x / step) * step


def expanded(file, latent, matrices):
    """Computes K and V of all heads from latents (batch, token, 1, number) and matrices (1, head, row, column)."""
    rank, shared = map(int, file.attrs["latent"].split("+"))
    own = matrices.shape[2] - file["value_dim"].size
    made = np.einsum("btr,hdr->bthd", latent[:, :, 0, :rank], matrices[0])
    tail = np.broadcast_to(latent[:, :, :, rank:], made.shape[:3] + (shared,))
    return (rounded(x, file.attrs["dtype"]) for x in (np.concatenate([made[..., :own], tail], axis=-1), made[..., own:]))


def compressed(file, dk, dv):
    """Turns gradients of K and V of all heads into gradients of the latent and of the matrices."""
    rank = int(file.attrs["latent"].split("+")[0])
    latent, matrices = tensor(file, "k"), tensor(file, "v")
    own = matrices.shape[2] - dv.shape[3]
    made = np.concatenate([dk[..., :own], dv], axis=-1)
    dlatent = np.concatenate([np.einsum("bthd,hdr->btr", made, matrices[0]), dk[..., own:].sum(axis=2)], axis=-1)
    return dlatent[:, :, None, :], np.einsum("bthd,btr->hdr", made, latent[:, :, 0, :rank])[None]


def philox(counter, key):
    """Philox4x32-7 (Salmon et al., SC 2011): four random words for each counter. A counter is given as four arrays."""
    c, key = [np.asarray(x, np.uint64) for x in counter], list(key)
    for _ in range(7):
        a, b = c[0] * np.uint64(0xD2511F53), c[2] * np.uint64(0xCD9E8D57)
        low, shift = np.uint64(0xFFFFFFFF), np.uint64(32)
        c = [(b >> shift) ^ c[1] ^ np.uint64(key[0]), b & low, (a >> shift) ^ c[3] ^ np.uint64(key[1]), a & low]
        key = [(key[0] + 0x9E3779B9) & 0xFFFFFFFF, (key[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def factors(file, batch, head, rows, keys):
    """Dropout factor of each pair of these global positions: 0 or 1/(1 - rate); 1 without dropout."""
    if file.attrs.get("dropout", 0.0) == 0:
        return 1.0
    seed = int(file.attrs["dropout_seed"])
    i, j = np.broadcast_arrays(rows[:, None].astype(np.uint64), keys[None, :].astype(np.uint64))
    n = np.uint64
    patch = i // n(16) * n(8) + i % n(8)
    place = j % n(8) * n(4) + j // n(8) % n(2) * n(2) + i // n(8) % n(2)
    number = np.zeros(i.shape, np.uint64)  # of 16 bits, the first in word 0
    for call in range(4):
        counter = (patch, j // n(16) * n(4) + n(call), np.full(i.shape, head), np.full(i.shape, batch | 0x80000000))
        for word in philox(counter, (seed & 0xFFFFFFFF, (seed >> 32) & 0xFFFFFFFF)):
            number = number * n(2) + (word >> place) % n(2)
    below = int(file.attrs["dropout_below"])
    return np.where(number >= n(below), 1 / (1 - below / 65536), 0.0)


def read(file):
    """q and k as they are attended to, v, do and what each row sees: begin and end of intervals of keys (row,
    interval), and which keys are there (1, token)."""
    tensors = [tensor(file, name) for name in ("q", "k", "v", "do")]
    if "latent" in file.attrs:
        tensors[1:3] = expanded(file, *tensors[1:3])
    if "rotary_position" in file:
        tensors[:2] = [rounded(rotated(file, name, x), file.attrs["dtype"]) for name, x in zip("qk", tensors)]
    sink = file["row_sink"][()]
    begin, end = [file["row_begin"][()], np.zeros_like(sink)], [file["row_end"][()], sink]
    if "row_earlier_begin" in file:
        begin, end = begin + list(file["row_earlier_begin"][()].T), end + list(file["row_earlier_end"][()].T)
    rows = [np.stack(bounds, axis=1) for bounds in (begin, end)]
    if "row_position" in file:  # only some tokens have a query row
        rows = [row[file["row_position"][()]] for row in rows]
    return *tensors, *rows, file["key_valid"][()].astype(bool)[None, :], file.attrs["scale"], file.attrs["soft_cap"]


def seen_by(rows, key, begin, end, valid):
    intervals = zip(begin[rows].T[..., None], end[rows].T[..., None])
    return np.logical_or.reduce([(first <= key) & (key < last) for first, last in intervals]) & valid


def torch_attention(file):
    """The results of PyTorch: scaled_dot_product_attention and its automatic gradients, in float64."""
    import torch

    q, k, v, do, begin, end, valid, scale, cap = read(file)
    batches, row_count, heads, _ = q.shape
    sees = torch.from_numpy(seen_by(slice(None), np.arange(k.shape[1])[None, :], begin, end, valid))
    some = sees.any(dim=1)  # of rows that see nothing PyTorch makes NaN; here they are 0
    leaves = {name: torch.from_numpy(x).requires_grad_() for name, x in (("q", q), ("k", k), ("v", v))}
    by_head = {name: x.transpose(1, 2) for name, x in leaves.items()}
    rows = by_head["q"][:, :, some]
    keys, values = (by_head[name].repeat_interleave(heads // k.shape[2], dim=1) for name in ("k", "v"))
    scores = scale * rows @ keys.transpose(2, 3)
    if cap > 0:
        scores = cap * torch.tanh(scores / cap)
    scores = scores.masked_fill(~sees[some], -torch.inf)
    if "sinks" in file:
        sys.exit("check_tensors.py: --by torch knows no sinks; leave it out")
    if cap > 0 or file.attrs.get("dropout", 0.0) > 0:  # of which scaled_dot_product_attention knows none, or not the same
        position = file["row_position"][()] if "row_position" in file else np.arange(row_count)
        d = [[factors(file, b, h, position[some.numpy()], np.arange(k.shape[1])) for h in range(heads)]
             for b in range(batches)]
        out = (scores.softmax(dim=-1) * torch.tensor(np.array(d)).reshape(batches, heads, *np.shape(d)[2:])) @ values
    else:
        out = torch.nn.functional.scaled_dot_product_attention(rows, keys, values, sees[some], scale=scale)
    out.backward(torch.from_numpy(do).transpose(1, 2)[:, :, some])
    o, lse = torch.zeros(do.shape, dtype=torch.float64), torch.full((batches, row_count, heads), -torch.inf, dtype=torch.float64)
    o[:, some], lse[:, some] = out.detach().transpose(1, 2), scores.detach().logsumexp(dim=-1).transpose(1, 2)
    return {name: x.numpy() for name, x in
            (("o", o), ("lse", lse), *(("d" + name, leaf.grad) for name, leaf in leaves.items()))}


def attention(file):
    q, k, v, do, begin, end, valid, scale, cap = read(file)
    batches, row_count, heads, _ = q.shape
    group = heads // k.shape[2]
    key = np.arange(k.shape[1])[None, :]
    position = file["row_position"][()] if "row_position" in file else np.arange(row_count)
    sinks = file["sinks"][()] if "sinks" in file else np.full(heads, -np.inf)
    result = {"o": np.zeros_like(do), "lse": np.zeros((batches, row_count, heads)), "dq": np.zeros_like(q),
              "dk": np.zeros_like(k), "dv": np.zeros_like(v)}
    if "sinks" in file:
        result["dsinks"] = np.zeros(heads)
    for first in range(0, row_count, ROWS):
        rows = slice(first, first + ROWS)
        sees = seen_by(rows, key, begin, end, valid)
        empty = ~sees.any(axis=1)
        for b in range(batches):
            for h in range(heads):
                g = h // group
                s = scale * q[b, rows, h] @ k[b, :, g].T
                if cap > 0:
                    s = cap * np.tanh(s / cap)
                top = np.where(empty, 0, np.where(sees, s, -np.inf).max(axis=1))[:, None]
                top = np.maximum(top, np.where(np.isinf(sinks[h]), top, sinks[h]))
                weight = np.where(sees, np.exp(np.where(sees, s - top, 0)), 0)
                total = (weight.sum(axis=1) + np.exp(sinks[h] - top[:, 0]))[:, None]
                total[total == 0] = 1
                p = weight / total
                d = factors(file, b, h, position[rows], key[0])
                o = (d * p) @ v[b, :, g]
                delta = (do[b, rows, h] * o).sum(axis=1)[:, None]
                ds = p * (d * (do[b, rows, h] @ v[b, :, g].T) - delta)
                if cap > 0:
                    ds *= 1 - (s / cap) ** 2
                result["o"][b, rows, h] = o
                result["lse"][b, rows, h] = np.where(empty, sinks[h], (top + np.log(total))[:, 0])
                if "sinks" in file:
                    result["dsinks"][h] -= (np.exp(sinks[h] - result["lse"][b, rows, h]) * delta[:, 0]).sum()
                result["dq"][b, rows, h] = scale * ds @ k[b, :, g]
                result["dk"][b, :, g] += scale * ds.T @ q[b, rows, h]
                result["dv"][b, :, g] += (d * p).T @ do[b, rows, h]
    return result


def errors(found, expected):
    """Errors relative to the norm and to the largest element. Infinite if only one side has an infinity or a NaN."""
    if not np.array_equal(np.isfinite(found), np.isfinite(expected)) or np.isnan(found).any():
        return np.inf, np.inf
    finite = np.isfinite(expected)
    if not np.array_equal(found[~finite], expected[~finite]):
        return np.inf, np.inf
    difference, size = found[finite] - expected[finite], expected[finite]
    if not difference.any():
        return 0.0, 0.0
    tiny = np.finfo(float).tiny  # nothing was expected, something was found: a huge error, not a division by zero
    return (np.linalg.norm(difference) / max(np.linalg.norm(size), tiny),
            np.abs(difference).max() / max(np.abs(size).max(), tiny))


def agrees(path, options):
    """Prints the errors of one file."""
    with h5py.File(path, "r") as file:
        tolerance = options.tolerance or TOLERANCE[file.attrs["arithmetic"]]
        expected = torch_attention(file) if options.by == "torch" else attention(file)
        if "rotary_position" in file:
            for name in ("dq", "dk"):
                expected[name] = rotated(file, name, expected[name], back=True)
        if "latent" in file.attrs:
            expected["dk"], expected["dv"] = compressed(file, expected["dk"], expected["dv"])
        worst = 0.0
        print(f"{'':4}{'by norm':>12}{'by largest':>12}")
        for name, tensor_expected in expected.items():
            by_norm, by_largest = errors(file[name][()], tensor_expected)
            worst = max(worst, by_norm)
            print(f"{name:4}{by_norm:12.2e}{by_largest:12.2e}")
    passed = worst <= tolerance
    print(f"{'agrees' if passed else 'DIFFERS'}: {worst:.2e}, tolerance {tolerance:.0e}")
    return passed


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", metavar="FILE.h5")
    parser.add_argument("--tolerance", type=float, help="default: by the arithmetic that the file names, " + str(TOLERANCE))
    parser.add_argument("--by", choices=["numpy", "torch"], default="numpy", help="who recomputes (numpy)")
    options = parser.parse_args()
    if options.by == "torch" and importlib.util.find_spec("torch") is None:
        parser.error("--by torch needs PyTorch, which this Python does not have; --by numpy needs only NumPy and h5py")
    for path in options.files:
        if not pathlib.Path(path).is_file():
            parser.error(f"there is no file {path}")
    all_agree = True
    for path in options.files:
        if len(options.files) > 1:
            print(path)
        all_agree &= agrees(path, options)
    return 0 if all_agree else 1


if __name__ == "__main__":
    sys.exit(main())
