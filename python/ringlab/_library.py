"""The C functions of python/library/ringlab_cpu.h. Everything else in the package goes through this file and _cuda."""

import ctypes
import os
import pathlib
import struct
from ctypes import POINTER, byref, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint64, c_void_p

VERSION = 4
REFUSED, BROKEN = 1, 2
KINDS = {"layout": 0, "mask": 1, "schedule": 2}
DTYPES = {"bf16": 0, "fp16": 1, "fp32": 2, "fp64": 3}
ACTIVITIES = ("attend", "other compute", "send", "receive")
RESULTS = ("o", "o_exact", "lse", "dq", "dk", "dv", "dsinks")


class Refused(ValueError):
    """An argument is wrong. Nothing was sent; the next call may be right."""


class BrokenRing(RuntimeError):
    """A rank is gone, failed, or was silent for longer than the time-out. The ring is lost, the process can go on."""


class Problem(ctypes.Structure):
    _fields_ = [(name, c_int64) for name in ("batch", "tokens", "query_heads", "kv_heads", "head_dim", "value_dim")] + [
        ("scale", c_double), ("soft_cap", c_double), ("dropout", c_double), ("dtype", c_int32)]


class Choices(ctypes.Structure):
    _fields_ = [("mask", c_char_p), ("layout", c_char_p), ("schedule", c_char_p), ("tokens", c_int64),
                ("mask_tokens", c_int64), ("ranks", c_int32)]


SEND = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_void_p, c_size_t, c_uint64)
RECEIVE = ctypes.CFUNCTYPE(c_int, c_void_p, c_int, c_int, c_size_t, c_uint64)
STOP = ctypes.CFUNCTYPE(c_int, c_void_p)


class Transport(ctypes.Structure):
    _fields_ = [("context", c_void_p), ("send", SEND), ("receive", RECEIVE), ("stop", STOP)]


# Those that every call fills are packed: ctypes takes several times as long to fill a structure.
TENSOR = struct.Struct("=Q4q")  # data, strides
INPUTS = struct.Struct("=Q4qQ4qQ4qQQ")  # q, k, v, sinks, seed; of ringlab_cuda.h, too


class Expected(ctypes.Structure):
    _fields_ = [(name, c_void_p) for name in ("q", "k", "v", "dout", "sinks")] + [("seed", c_uint64)] + [
        (name, c_void_p) for name in ("o", "lse", "dq", "dk", "dv", "dsinks")]


class Span(ctypes.Structure):
    _fields_ = [("begin", c_double), ("end", c_double), ("activity", c_int32),  # place in ACTIVITIES
                ("peer", c_int32)]


class Prediction(ctypes.Structure):
    _fields_ = [(name, c_double) for name in ("seconds", "naive_overlapped", "naive_serial", "compute", "compute_mean",
                                              "communication", "exposed", "flop", "scratch_bytes")]


SIGNATURES = {
    "ringlab_name": [c_int, c_int, POINTER(c_char_p), POINTER(c_char_p), POINTER(c_char_p)],
    "ringlab_granularity": [c_char_p, c_int, POINTER(c_int64)],
    "ringlab_positions": [POINTER(Choices), c_int, c_int, c_void_p, c_int64, POINTER(c_int64)],
    "ringlab_visible": [POINTER(Choices), c_void_p, c_void_p, c_int64, c_void_p],
    "ringlab_plan_create": [POINTER(Problem), POINTER(Choices), POINTER(c_void_p)],
    "ringlab_ring_create": [POINTER(Transport), c_int, c_int, c_double, POINTER(c_void_p)],
    "ringlab_forward": [c_void_p, c_void_p, c_char_p, c_void_p, c_void_p, c_void_p],
    "ringlab_backward": [c_void_p, c_void_p, c_char_p, c_char_p] + [c_void_p] * 6,
    "ringlab_spans": [c_void_p, c_void_p, c_int64, POINTER(c_int64)],
    "ringlab_all_gather_create": [c_int, c_size_t, c_void_p, POINTER(c_void_p)],
    "ringlab_all_gather_open": [c_void_p, c_int, c_int, c_size_t, POINTER(c_void_p)],
    "ringlab_all_gather_round": [c_void_p, c_char_p, c_double, c_double, c_void_p, POINTER(c_int)],
    "ringlab_bounds": [c_void_p, POINTER(Expected), c_void_p],
    "ringlab_predict": [c_void_p, c_char_p, c_int, POINTER(Prediction)],
}
NOTHING = {**{name: [c_void_p] for name in ("ringlab_plan_destroy", "ringlab_ring_destroy", "ringlab_all_gather_ready",
                                            "ringlab_all_gather_leave", "ringlab_all_gather_destroy")},
           "ringlab_ring_done": [c_void_p, c_uint64, c_void_p, c_size_t, c_char_p]}


def load(name, version, signatures, nothing, wrong, missing):
    """The functions of lib{name}.so, with these arguments; `nothing`: those that return nothing. Raises `wrong` if the
    library cannot be loaded or has another version of the C interface; `missing` then says what to do."""
    prefix = name.removesuffix("_cpu")
    path = os.environ.get("RINGLAB_CUDA_LIBRARY" if prefix == name else "RINGLAB_LIBRARY")
    path = path or pathlib.Path(__file__).with_name(f"lib{name}.so")
    try:
        loaded = ctypes.CDLL(str(path))
    except OSError as error:
        raise wrong(missing.format(error)) from None
    found = getattr(loaded, f"{prefix}_version")()
    if found != version:
        raise wrong(f"{path} has version {found} of the C interface, this package wants {version}; install both from one "
                    "checkout")
    getattr(loaded, f"{prefix}_message").restype = c_char_p
    for function, arguments in (signatures | nothing).items():
        getattr(loaded, function).argtypes = arguments
    for function in nothing:
        getattr(loaded, function).restype = None
    return loaded


library = load("ringlab_cpu", VERSION, SIGNATURES, NOTHING, ImportError,
               "Ringlab's library cannot be loaded: {}; install the package (pip install ./python), or name a built "
               "libringlab_cpu.so in RINGLAB_LIBRARY")
library.ringlab_commit.restype = c_char_p


def failure(status, message):
    """The error that a status of a library's function stands for; `message`: the function that says why."""
    return (Refused if status == REFUSED else BrokenRing)(message().decode(errors="replace"))


def call(name, *arguments):
    """Calls a function of the library. Raises Refused or BrokenRing with its message."""
    status = getattr(library, name)(*arguments)
    if status:
        raise failure(status, library.ringlab_message)


def commit():
    """Commit that the library was built from, with "+dirty" if files had changed; "unknown" without a repository."""
    return library.ringlab_commit().decode()


def names(kind):
    """{name: (usage, help)} of "layout", "mask" or "schedule"."""
    found, texts = {}, [c_char_p() for _ in range(3)]
    try:
        while True:
            call("ringlab_name", KINDS[kind], len(found), *map(byref, texts))
            name, usage, help_text = (text.value.decode() for text in texts)
            found[name] = (usage, help_text)
    except Refused:
        return found


def choices(mask, layout, schedule, tokens, mask_tokens, ranks):
    return Choices(mask.encode(), layout.encode(), schedule.encode(), tokens, mask_tokens, ranks)


def granularity(layout, ranks):
    multiple = c_int64()
    call("ringlab_granularity", layout.encode(), ranks, byref(multiple))
    return multiple.value


def positions(chosen, rank, by_document):
    """A ctypes array of int64."""
    count, most = c_int64(), 1 + chosen.tokens // max(chosen.ranks, 1)
    while True:
        found = (c_int64 * most)()
        call("ringlab_positions", byref(chosen), rank, by_document, found, most, byref(count))
        if count.value <= most:
            return (c_int64 * count.value).from_buffer(found)
        most = count.value


def spans(ring):
    """What a ring's rank did in its last pass, a ctypes array of Span: times are seconds before this call."""
    count, most = c_int64(), 0
    while True:
        found = (Span * most)()
        call("ringlab_spans", ring, found, most, byref(count))
        if count.value <= most:
            return found
        most = count.value


class Plan:
    """A problem under a mask, in a layout, by a schedule: both passes."""

    def __init__(self, problem, chosen):
        self.problem, self.handle = problem, c_void_p()
        call("ringlab_plan_create", byref(problem), byref(chosen), byref(self.handle))

    def __del__(self):
        if library is not None and getattr(self, "handle", None):
            library.ringlab_plan_destroy(self.handle)

    def predict(self, machine_file, backward):
        prediction = Prediction()
        call("ringlab_predict", self.handle, os.fsencode(machine_file), int(backward), byref(prediction))
        return {name: getattr(prediction, name) for name, _ in Prediction._fields_}

    def bounds(self, expected):
        """{result: (relative RMS, largest difference over largest magnitude)} that a right run may be off by."""
        found = (c_double * 2 * len(RESULTS))()
        call("ringlab_bounds", self.handle, byref(expected), found)
        return {name: tuple(found[i]) for i, name in enumerate(RESULTS)}
