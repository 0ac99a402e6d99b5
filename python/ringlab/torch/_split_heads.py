"""DTensors whose heads are split over a mesh (tensor parallelism): each process attends with the heads that it has."""

import torch
import torch.distributed as dist

from ringlab._library import Refused
from ringlab.torch import _ring


PLAIN = torch.Tensor, torch.nn.Parameter


def _unchanged(result):
    return result


def local_heads(q, k, v, sinks, group):
    """q, k, v and sinks as this process has them, and a function that makes DTensors of its results, as q is one.

    Raises Refused if anything but heads is split, if the tensors are not split alike, or if heads are split over ranks
    of the ring, which must all have the same heads.
    """
    if type(q) in PLAIN and type(k) in PLAIN and type(v) in PLAIN and (sinks is None or type(sinks) in PLAIN):
        return q, k, v, sinks, _unchanged
    from torch.distributed.tensor import DTensor, Replicate, Shard  # takes a while to load, and few need it

    tensors = {"q": q, "k": k, "v": v} | ({} if sinks is None else {"sinks": sinks})
    split = [name for name, x in tensors.items() if isinstance(x, DTensor)]
    if not split:
        return q, k, v, sinks, _unchanged
    for name, x in tensors.items():
        if name not in split:
            raise Refused(f"{split[0]} is a DTensor and {name} is not; give all as DTensors, or their to_local()")
    mesh, heads = q.device_mesh, q.dim() - 2
    for name, x in tensors.items():
        of_heads = Shard(0 if name == "sinks" else heads)
        wanted = tuple(of_heads if of_q == Shard(heads) else Replicate() for of_q in q.placements)
        if x.device_mesh != mesh or tuple(x.placements) != wanted:
            raise Refused(f"{name} is a DTensor with placements {tuple(x.placements)} on mesh "
                          f"{x.device_mesh.mesh_dim_names}; with q on {mesh.mesh_dim_names} they must be {wanted}: heads, "
                          f"{of_heads}, are all that may be split; give to_local() of a DTensor of a shard's tokens")
    ring = _ring.process_group(group)
    members = set() if ring is None else set(dist.get_process_group_ranks(ring))
    for dim, placement in enumerate(q.placements):
        shared = sorted(members & set(dist.get_process_group_ranks(mesh.get_group(dim))))
        if len(shared) > 1:
            raise Refused(f"q is a DTensor over a mesh that has ranks {shared} of the ring; the ring must be another "
                          "dimension of the mesh, as group=mesh[\"cp\"]")
    return (*(x.to_local() for x in (q, k, v)), None if sinks is None else sinks.to_local(),
            lambda result: DTensor.from_local(result, mesh, q.placements, run_check=False))
