"""A ring of processes: who takes part, how messages travel, and how the ranks agree before any leaves."""

import atexit
import ctypes
import datetime
import hashlib
import json
import pathlib
import queue
import struct
import sys
import threading
from ctypes import byref, c_void_p

import torch
import torch.distributed as dist
from torch.distributed.distributed_c10d import _resolve_process_group

from ringlab import _library
from ringlab._library import BrokenRing, Refused
from ringlab.torch import _host_all_gather
from ringlab.torch._cuda_ring import CudaRing

DEFAULT_TIMEOUT = 600.0  # seconds
ALONE = ""  # the name of the group of a process that has no others


class _Waiters:
    """Threads that wait for messages, as gloo tells of their end to nobody else; as many as are under way at a time."""

    def __init__(self):
        self._work, self._threads, self._idle, self._changed = queue.SimpleQueue(), 0, 0, threading.Condition()

    def wait_for(self, work, limit, finish):
        with self._changed:
            if self._idle > 0:
                self._idle -= 1
            else:
                threading.Thread(target=self._run, name="ringlab messages", daemon=True).start()
                self._threads += 1
        self._work.put((work, limit, finish))

    def settle(self, seconds):
        """Returns when no message is waited for any more, or after so many seconds."""
        with self._changed:
            self._changed.wait_for(lambda: self._idle == self._threads, seconds)

    def _run(self):
        while True:
            work, limit, finish = self._work.get()
            try:
                work.wait(limit)
                finish(None)
            except Exception as error:  # noqa: BLE001, it is told to whoever waits for the message
                finish(str(error).splitlines()[0] if str(error) else type(error).__name__)
            del work, finish
            with self._changed:
                self._idle += 1
                self._changed.notify_all()


_waiters = _Waiters()


class Ring:
    """The ranks of a process group, over a gloo group of their own: what others send on theirs cannot get between, and
    a ring that breaks does not take theirs along."""

    CALL = struct.Struct("<??32sqq")  # refused, backward, digest of the arguments, tokens of the shard, seed
    SHORT = struct.Struct(f"<q{CALL.size - 8}s")  # the same bytes: how many there are, and the first of them

    def __init__(self, group, timeout, transport):
        self.group, self.timeout, self.broken = group, timeout, ""
        self._cuda, self._transport = None, transport
        self.lock = threading.RLock()  # from what ranks agree on to the end of the call: threads may share a ring
        self.rank, self.size = (dist.get_rank(group), dist.get_world_size(group)) if group else (0, 1)
        self._error = None
        self._messages = self._on_host = None
        self._blocks = self._blocks_over_gloo  # takes a block of the size of CALL, and returns those of all ranks
        if self.size > 1:
            try:
                self._messages = dist.new_group(
                    dist.get_process_group_ranks(group), backend="gloo",
                    timeout=datetime.timedelta(seconds=timeout), use_local_synchronization=True)
                self._on_host = _host_all_gather.made_by_all(self.rank, self.size, self.CALL.size, timeout,
                                                             self.all_gather)
                self._blocks = self._on_host or self._blocks
            except RuntimeError as error:
                raise BrokenRing(self._named(f"the others did not come to make a ring, within {timeout:g} s or because "
                                             f"one is gone: {str(error).splitlines()[0]}")) from None
        # The objects must live as long as the library may call them.
        self._calls = _library.Transport(None, _library.SEND(self._send), _library.RECEIVE(self._receive),
                                         _library.STOP(self._stop))
        self.handle = c_void_p()
        _library.call("ringlab_ring_create", byref(self._calls), self.rank, self.size, timeout, byref(self.handle))

    def __del__(self):
        if getattr(self, "handle", None):
            _library.library.ringlab_ring_destroy(self.handle)

    # ---- Messages: called by the library ----

    def _guarded(self, begin):
        try:
            begin()
            return 0
        except Exception as error:  # noqa: BLE001, told when the library has returned
            self._error = error
            return 1

    def _send(self, _, peer, channel, data, size, request):
        def begin():
            # An empty message is one byte that nobody looks at.
            message = torch.frombuffer(bytearray(ctypes.string_at(data, size) or b"\0"), dtype=torch.uint8)
            self._start(self._messages.send([message], peer, channel), message, request, 0)
        return self._guarded(begin)

    def _receive(self, _, peer, channel, size, request):
        def begin():
            message = torch.empty(max(size, 1), dtype=torch.uint8)
            self._start(self._messages.recv([message], peer, channel), message, request, size)
        return self._guarded(begin)

    def _start(self, work, message, request, size):
        # What waits for longer than the time-out because nothing moves is named by the library, which knows more.
        limit = datetime.timedelta(seconds=2 * self.timeout)
        _waiters.wait_for(work, limit, lambda error: _library.library.ringlab_ring_done(
            self.handle, request, message.data_ptr() if size else None, size, error and error.encode()))

    def _stop(self, _):
        return int(self._error is not None)

    def _unraisable(self, unraisable):
        # Ctrl-C is noticed where a function that the library calls begins, too early to be caught in it.
        if isinstance(unraisable.exc_value, KeyboardInterrupt):
            self._error = unraisable.exc_value
        else:
            sys.__unraisablehook__(unraisable)

    def note(self, error):
        """Told when the library has returned."""
        self._error = error

    def all_gather(self, data):
        """Returns the bytes that each rank gave, by rank."""
        # What is short on all ranks, as most of it is, fits into a block of agree() with its length.
        found = list(self.SHORT.iter_unpack(self._blocks(self.SHORT.pack(len(data), data))))
        most = max(length for length, _ in found)
        if most > self.SHORT.size - 8:
            everything = self._blocks_over_gloo(data.ljust(most, b"\0"))
            found = [(length, everything[rank * most:(rank + 1) * most]) for rank, (length, _) in enumerate(found)]
        return [block[:length] for length, block in found]

    def _blocks_over_gloo(self, block):
        """The blocks of all ranks, which are of one size, one after the other."""
        everything = torch.empty(self.size * len(block), dtype=torch.uint8)
        dist.all_gather_into_tensor(everything, torch.frombuffer(bytearray(block), dtype=torch.uint8),
                                    group=self._messages)
        return ctypes.string_at(everything.data_ptr(), len(everything))

    def tell_all(self, data):
        """all_gather() that also works on a ring of one and after errors. Raises BrokenRing."""
        if self.size == 1:
            return [data]
        if self.broken:
            raise self._ended_before()
        try:
            return self.all_gather(data)
        except RuntimeError as error:
            raise self._nobody_came(error) from None

    # ---- Calls ----

    def cuda(self, device):
        """The ring on this rank's device; made, by all ranks together, when it is first asked for."""
        if self._cuda is None:
            self._cuda = CudaRing(self, device, self._transport)
        return self._cuda

    def cuda_plan(self, key, device, *what):
        """A plan of CudaRing: a known one or a new one. Raises BrokenRing; and Refused, on all ranks, if one cannot have
        it."""
        if self.known_plan(key):
            return self._cuda.use(key)
        _free_rings_that_ended()
        return self.pass_(lambda: self.cuda(device).plan(key, *what))

    def known_plan(self, key):
        """One of the latest plans of CudaRing, or None."""
        return self._cuda and self._cuda.plans.get(key)

    def cuda_memory(self):
        return self._cuda.held() if self._cuda else (0, 0)

    def other_device(self, device):
        """Why this rank cannot compute there; empty if it can."""
        if device.type != "cuda" or self._cuda is None or self._cuda.device == device:
            return ""
        return f"q lies on {device}; this rank of the ring computes on {self._cuda.device}"

    def pass_(self, call, *arguments):
        """A function of a library, called by `call`, in which ranks wait for each other. Raises BrokenRing; and Refused,
        on all ranks, where nothing was begun."""
        self._error, hook = None, sys.unraisablehook
        sys.unraisablehook = self._unraisable
        try:
            return call(*arguments)
        except BrokenRing as error:
            self._break(str(error))
            if isinstance(self._error, KeyboardInterrupt):
                raise self._error from None
            raise BrokenRing(self._named(f"{error}{': ' + str(self._error) if self._error else ''}")) from None
        finally:
            sys.unraisablehook = hook

    def _named(self, text):
        return f"rank {self.rank} of {self.size}: {text}"

    def _ended_before(self):
        return BrokenRing(self._named(f"this ring ended in an earlier call: {self.broken}"))

    def _nobody_came(self, error):
        self._break(str(error).splitlines()[0])
        return BrokenRing(self._named("the others did not come to the call, within "
                                      f"{self.timeout:g} s or because one is gone: {self.broken}"))

    def _break(self, why):
        """Nobody is to wait for this rank: a wait of no time closes the connections of the ring's own gloo group."""
        if self.broken or self._messages is None:
            return
        self.broken = why
        if self._on_host:
            self._on_host.leave()
        try:
            nothing, peer = torch.empty(1, dtype=torch.uint8), (self.rank + 1) % self.size
            self._messages.recv([nothing], peer, 1 << 20).wait(datetime.timedelta(milliseconds=1))
        except RuntimeError:
            pass

    def agree(self, call, digest, tokens, seed, refusal, backward=False, draws=False):
        """What every rank says before a pass: returns the tokens of each shard and rank 0's seed.

        `call` are the arguments that must be equal everywhere, `digest` is digest_of(call); `refusal` says why this rank
        cannot take part, or is empty. Seeds must be equal unless each rank `draws` its own. Raises Refused, on all ranks,
        where they differ or one refuses.
        """
        if self.broken:
            raise self._ended_before()
        if self.size == 1:
            if refusal:
                raise Refused(refusal)
            return (tokens,), seed
        own = self.CALL.pack(bool(refusal), backward, digest, tokens, seed)
        everything = self._exchanged(own)
        if not refusal and everything == own * self.size:
            return (tokens,) * self.size, seed
        refused, backwards, digests, lengths, seeds = zip(*self.CALL.iter_unpack(everything))
        said = list(zip(backwards, digests, (0,) * self.size if draws else seeds))
        if any(refused) or said != [said[0]] * self.size:
            shown = {"pass": "backward" if backward else "forward", **call}
            if not draws and call:
                shown["dropout_seed"] = seed
            self._disagree(shown, refusal, refused, said)
        return lengths, seeds[0]

    def _exchanged(self, block):
        """The blocks of all ranks, one after the other. Raises BrokenRing."""
        try:
            return self._blocks(block)
        except RuntimeError as error:
            raise self._nobody_came(error) from None
        except KeyboardInterrupt:
            self._break("Ctrl-C")
            raise

    def _disagree(self, call, refusal, refused, said):
        """Raises Refused, by what the ranks tell of their calls; which ranks refuse, and what each said."""
        short = {name: shortened(str(value)) for name, value in call.items()}
        texts = [text.decode() for text in self.tell_all((refusal or json.dumps(short)).encode())]
        if refusal:
            raise Refused(refusal)
        if any(refused):
            rank = refused.index(True)
            raise Refused(f"rank {rank} refuses the call: {texts[rank]}")
        rank = next(rank for rank, theirs in enumerate(said) if theirs != said[0])
        raise Refused(f"rank {rank} calls with {_difference(texts[rank], texts[0])}; all ranks of a ring must make the "
                      "same call")


def digest_of(call):
    """SHA-256 of a call's arguments. Ranks compare these."""
    return hashlib.sha256(repr(call).encode()).digest()


def shortened(text):
    return text if len(text) <= 100 else f"{text[:60]}... ({len(text)} letters)"


def _difference(theirs, first):
    theirs, first = json.loads(theirs), json.loads(first)
    parts = [f"{name} {theirs.get(name)}, rank 0 with {first.get(name)}" for name in {**first, **theirs}
             if theirs.get(name) != first.get(name)]
    return " and ".join(parts) if parts else "other arguments than rank 0 (they differ behind what is shown)"


def contents_of_files(*specs):
    """Digests of the files that names of masks and layouts mention, as "documents:@lengths.txt"."""
    digests = []
    for spec in specs:
        for term in spec.split("+"):
            _, _, arguments = term.partition(":")
            path = arguments if term.startswith("file:") else arguments[1:] if arguments.startswith("@") else None
            if path and pathlib.Path(path).is_file():
                digests.append(hashlib.sha256(pathlib.Path(path).read_bytes()).hexdigest())
    return digests


# ---- Groups by name, as compiled code knows them ----

_rings, _rings_lock = {}, threading.Lock()
_ended = []  # CUDA rings that are not used any more, until their memory is free


def _free_rings_that_ended(locked=False):
    """Frees what rings hold that broke, or whose group was destroyed. Others hear of it when they do the same, as all ranks
    do that make a new ring."""
    if not locked:
        with _rings_lock:
            return _free_rings_that_ended(True)
    for name, ring in list(_rings.items()):
        if is_gone := name != ALONE and _registered(name) is not ring.group:
            del _rings[name]
        if (is_gone or ring.broken) and ring._cuda:
            _ended.append(ring._cuda)
            ring._cuda = None
    _ended[:] = [ring for ring in _ended if not ring.let_go()]


def _registered(name):
    """The group of this name; None if there is none any more."""
    try:
        return _resolve_process_group(name)
    except (RuntimeError, ValueError):
        return None


def process_group(group):
    """The ProcessGroup that a caller means by a ProcessGroup, a DeviceMesh of one dimension, or None for all processes.
    None if this process runs alone. Raises Refused."""
    if group is None:
        # Not all versions of PyTorch can compile a look at a group that is not there.
        return dist.group.WORLD if dist.is_initialized() else None
    if isinstance(group, dist.device_mesh.DeviceMesh):
        if group.ndim != 1:
            raise Refused(f"the mesh has {group.ndim} dimensions {group.mesh_dim_names}; a ring is one of them, as "
                          "mesh[\"cp\"]")
        return group.get_group()
    if not isinstance(group, dist.ProcessGroup):
        raise Refused(f"group is a {type(group).__name__}; it must be a ProcessGroup that this process is in, a "
                      "DeviceMesh of one dimension, or None")
    return group


def group_name(group):
    """The name by which compiled code knows a group. A name is returned as it is."""
    if isinstance(group, str):
        return group
    found = process_group(group)
    return ALONE if found is None else found.group_name


def refuse(group, why):
    """Ends a call that this rank cannot even begin. The others come to agree on it, and hear why. Raises Refused."""
    if not torch.compiler.is_compiling():
        ring = ring_of(group_name(group))
        with ring.lock:
            ring.agree({}, digest_of({}), 0, 0, str(why))
    raise Refused(str(why))


@atexit.register
def _let_groups_go():
    """So that gloo's threads end when the groups are destroyed. A thread that lets go of a tensor or of a message while the
    interpreter ends would end the process by std::terminate()."""
    _waiters.settle(1.0)  # a ring that broke may have messages that never arrive
    with _rings_lock:
        for ring in _rings.values():
            ring.group = ring._messages = None


def ring_of(name, timeout=DEFAULT_TIMEOUT, transport="automatic"):
    """The ring of a group; made, by all its ranks together, when it is first asked for."""
    ring = _rings.get(name)
    if ring is not None and ring.group is (dist.group.WORLD if name != ALONE else None):
        return ring  # of all processes, and these are still the same
    group = _resolve_process_group(name) if name != ALONE else None
    with _rings_lock:
        ring = _rings.get(name)
        if ring is None or ring.group is not group:
            _free_rings_that_ended(locked=True)
            ring = _rings[name] = Ring(group, timeout, transport)
        return ring


def held_memory(name):
    """Bytes on the device and pinned on the host that a group's ring holds besides PyTorch's; 0 if there is none."""
    ring = _rings.get(name)
    return ring.cuda_memory() if ring else (0, 0)
