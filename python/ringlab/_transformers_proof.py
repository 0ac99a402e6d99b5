"""Compares a model of transformers over a ring with the same model on one process, by transformers' own attention."""

import contextlib
import copy
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from unittest import mock

import torch
import torch.distributed as dist

from ringlab._library import Refused
from ringlab.torch import next_token_labels, shard, unshard

# Models round to float32 on the way, in norms and in the loss, each time by 2^-24 at most; some dozens of them in a row
# stay below this. In the tests' models a missing soft cap is off by 2e-3, a wrong mask or position by 1e-2 or more.
TOLERANCE = 64 * 2.0**-24


def verify(model, *, mask="causal", layout="zigzag", schedule="ring", ranks=2, tokens=64):
    """Compares logits, loss and all gradients of use(model, ...) with those by transformers' eager attention. Returns
    the largest relative error of each, by name. Raises Refused where one is above TOLERANCE.

    It starts `ranks` processes over gloo on this machine, each of which computes both in float64 on the CPU: give it a
    model of few and small layers, and more tokens than its windows have. Tokens are drawn.
    """
    with tempfile.TemporaryDirectory() as folder:
        file, result = pathlib.Path(folder, "model.pt"), pathlib.Path(folder, "errors.json")
        torch.save((model, {"mask": mask, "layout": layout, "schedule": schedule}, tokens), file)
        command = [sys.executable, "-m", "torch.distributed.run", f"--nproc_per_node={ranks}", "--standalone",
                   "--module", "ringlab._transformers_proof", file, result]
        ran = subprocess.run(command, env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}, text=True,
                             capture_output=True)
        if not result.exists():
            raise Refused((ran.stderr.strip().splitlines() or ["the processes ended without a word"])[-1])
        found = json.loads(result.read_text())
    if "refused" in found:
        raise Refused(found["refused"])
    return checked(found)


def checked(found):
    """The errors, if they are small; else raises Refused."""
    for name, error in found.items():
        if not error <= TOLERANCE:
            raise Refused(f"{name} of the ring are off by {error:.2g}, relative; at most {TOLERANCE:.2g} are right")
    return found


@contextlib.contextmanager
def _exact_softmax():
    """Eager attention rounds its weights to float32. Without that both sides are float64."""
    softmax = torch.nn.functional.softmax
    with mock.patch.object(torch.nn.functional, "softmax", lambda x, dim, dtype=None: softmax(x, dim=dim)):
        yield


def errors(model, tokens, *, cu_seqlens=None, group=None, **names):
    """The largest errors of a ring's logits, loss and gradients, each relative to the largest number there. All ranks
    call it, with the same weights. names: mask, layout and schedule. cu_seqlens: of packed documents, or None."""
    from ringlab.transformers import UNSHIFTED, use

    where = {**names, "group": group, "cu_seqlens": cu_seqlens}
    del where["schedule"]
    torch.manual_seed(0)
    alone = copy.deepcopy(model).cpu().to(torch.float64).eval()
    alone.set_experts_implementation("eager")  # others take no float64
    over_ring = copy.deepcopy(alone)
    alone.set_attn_implementation("eager")
    use(over_ring, **names, group=group, unverified=True)
    ids = torch.randint(model.config.vocab_size, (1, tokens))
    is_next = model.loss_type not in UNSHIFTED
    labels = next_token_labels(ids, cu_seqlens=cu_seqlens) if is_next else ids
    count = int((labels != -100).sum())
    with _exact_softmax():
        # Documents one by one, as not all models of transformers keep packed ones apart.
        documents = [ids] if cu_seqlens is None else ids.split(cu_seqlens.diff().tolist(), 1)
        parts = [alone(input_ids=one, labels=one, num_items_in_batch=count, use_cache=False) for one in documents]
        logits, expected = torch.cat([part.logits.detach() for part in parts], 1), sum(part.loss for part in parts)
        expected.backward()
        own_labels = {"shift_labels" if is_next else "labels": shard(labels, **where)}
        got = over_ring(input_ids=shard(ids, **where), cu_seqlens=cu_seqlens, num_items_in_batch=count, use_cache=False,
                        **own_labels)
        got.loss.backward()
    loss = got.loss.detach().clone()
    dist.all_reduce(loss, group=group)
    found = {"logits": _off(unshard(got.logits.detach(), **where), logits),
             "losses": _off(loss, expected.detach()), "gradients": 0.0}
    right = {name: weight.grad for name, weight in alone.named_parameters() if weight.grad is not None}
    largest = max(gradient.abs().max() for gradient in right.values())
    for name, weight in over_ring.named_parameters():
        if name in right:
            gradient = torch.zeros_like(weight) if weight.grad is None else weight.grad
            dist.all_reduce(gradient, group=group)
            found["gradients"] = max(found["gradients"], _off(gradient, right[name], 1e-6 * largest))
    return found


def _off(got, expected, least=0.0):
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=least))


def _main():
    file, result = sys.argv[1:]
    dist.init_process_group("gloo")
    model, names, tokens = torch.load(file, weights_only=False)
    try:
        found = errors(model, tokens, **names)
    except Exception as error:  # of any code that models have
        pathlib.Path(result).write_text(json.dumps({"refused": str(error)}))
        raise
    if dist.get_rank() == 0:
        pathlib.Path(result).write_text(json.dumps(found))
    dist.destroy_process_group()


if __name__ == "__main__":
    _main()
