"""Ringlab from Python: ring attention on PyTorch tensors (ringlab.torch), and what it would cost on described machines.

    >>> import ringlab
    >>> ringlab.positions(16, layout="zigzag", ranks=2, rank=0)
    [0, 1, 2, 3, 12, 13, 14, 15]
"""

from ringlab import _library
from ringlab._library import BrokenRing, Refused, commit
from ringlab._tables import advise, machines, predict

__all__ = ["BrokenRing", "Refused", "advise", "commit", "granularity", "layouts", "machines", "masks", "positions", "predict",
           "record", "schedules"]


def layouts():
    """{name: (how to type it, what it is)}"""
    return _library.names("layout")


def masks():
    """{name: (how to type it, what it is)}; masks are joined by "+"."""
    return _library.names("mask")


def schedules():
    """{name: (how to type it, what it is)}"""
    return _library.names("schedule")


def granularity(layout, ranks):
    """Tokens must be a multiple of this for `layout` to divide them over `ranks`."""
    return _library.granularity(layout, ranks)


def positions(tokens, *, layout, ranks, rank, mask="", documents=False):
    """Global positions of a rank's tokens in its local order; with `documents` each one's place in its document.

    `mask` is needed by the layouts that follow it, and by documents. Raises Refused.
    """
    return list(_library.positions(_library.choices(mask, layout, "ring", tokens, tokens, ranks), rank, documents))


def record(path, *, machines=(), group=None, overwrite=False):
    """Around a training step: writes what its ring_attention() calls did, beside predictions, to the HDF5 file `path`.

        with ringlab.record("step.h5", machines="h200_nvswitch_copy_engine") as recording:
            model(ids).loss.backward()
        print(recording.text)

    All ranks of `group` (all processes if None) enter it. Rank 0 writes the file, which needs h5py, and `text`, on
    every rank, says where the time went (ringlab.kineto). Passes are recorded one behind the other, without what the model does
    between them. machines: names or files that the passes are predicted on; these must all be of one kind, in bfloat16
    or float16. Without machines the record has only what was measured. Clocks of
    several hosts are taken as they are. Raises Refused, before the step where that is possible.
    """
    from ringlab.torch import _record  # PyTorch takes a while to load

    return _record.record(path, machines, group, overwrite)
