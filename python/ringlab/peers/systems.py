"""The systems that can be timed, by name: FAMILY or FAMILY:ARGUMENT."""

import contextlib
import dataclasses
import difflib
from collections.abc import Callable

import torch

import ringlab
from ringlab.peers import kernels
from ringlab.peers.case import WrongUse
from ringlab.peers.timing import Call
from ringlab.peers.world import Absent


@dataclasses.dataclass
class System:
    """A system that computes one case: its shard, and attention of that shard."""

    name: str
    family: str
    schedule: str
    layout: str
    kernels: str
    positions: torch.Tensor  # of this rank's tokens in the whole sequence, in the order of its shard
    attend: Callable  # (q, k, v) -> o, each (1, tokens of the shard, heads, head_dim); differentiable
    around: Callable = contextlib.nullcontext  # () -> a context in which all passes are called
    call: Callable = Call  # (system, which of timing.PASSES, tensors) -> timing.Call


@dataclasses.dataclass(frozen=True)
class Family:
    """usage: how it is typed. check: raises WrongUse for an argument that is none. make: (argument, case, world) ->
    System, raises Absent; what both get is `default` where no argument is given."""

    usage: str
    help: str
    default: str
    check: Callable
    make: Callable


def choose(what, name, names):
    """The name. Raises WrongUse if it is none of them."""
    if name not in names:
        close = difflib.get_close_matches(name, names, 1)
        raise WrongUse(f"unknown {what} '{name}'" + (f", did you mean '{close[0]}'?" if close else
                                                     f"; there are {', '.join(names)}"))
    return name


def split(argument, usage):
    """The two parts of "A/B"."""
    first, slash, second = argument.partition("/")
    if not (first and slash and second):
        raise WrongUse(f"'{argument}' is not of the form {usage}")
    return first, second


def positions(case, world, layout):
    """Positions of this rank's tokens in a layout of Ringlab. Raises Absent if it does not divide the tokens."""
    try:
        own = ringlab.positions(case.tokens, layout=layout, ranks=world.size, rank=world.rank, mask=case.mask.spec)
    except ringlab.Refused as error:
        raise Absent(str(error)) from None
    return torch.tensor(own)


def families():
    """{name: Family}"""
    from ringlab.peers import alone, pytorch_context_parallel, ring_flash_attention, ringlab_ring, ulysses
    return {module.NAME: module.FAMILY for module in (
        ringlab_ring, ulysses, pytorch_context_parallel, ring_flash_attention, alone)}


def _family_and_argument(name):
    family, _, argument = name.partition(":")
    found = families()[choose("system", family, families())]
    return found, argument or found.default


def check(name):
    """Raises WrongUse where there is no such system."""
    family, argument = _family_and_argument(name)
    family.check(argument)


def make(name, case, world):
    """The system for a case. Raises Absent."""
    family, argument = _family_and_argument(name)
    return family.make(name, argument, case, world)


def listing():
    """Lines for --list."""
    lines = ["systems"]
    for family in families().values():
        lines += [f"  {family.usage}", *(f"      {line}" for line in family.help.splitlines())]
    lines += ["kernels (KERNELS above)", *(f"  {name:6} {text}" for name, text in kernels.NAMES.items())]
    return "\n".join(lines)
