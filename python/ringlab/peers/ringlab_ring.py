"""Ringlab's own schedules."""

import ringlab
from ringlab.peers.systems import Family, System, choose, positions, split
from ringlab.peers.world import Absent
from ringlab.torch import ring_attention

NAME = "ringlab"
USAGE = "ringlab[:SCHEDULE/LAYOUT]"


def _check(argument):
    schedule, layout = split(argument, "SCHEDULE/LAYOUT, as ring/zigzag")
    choose("schedule", schedule.partition(":")[0], ringlab.schedules())
    choose("layout", layout.partition(":")[0], ringlab.layouts())


def _make(name, argument, case, world):
    schedule, layout = argument.split("/", 1)
    mask = case.mask.spec
    own = positions(case, world, layout)
    if world.device.type == "cuda" and not case.is_narrow():
        raise Absent(f"on CUDA ringlab computes in bf16 or fp16, not in {case.dtype}")

    def attend(q, k, v):
        return ring_attention(q, k, v, mask=mask, layout=layout, schedule=schedule)

    return System(name, NAME, schedule, layout, "ringlab", own, attend)


FAMILY = Family(USAGE, "ringlab.torch.ring_attention, ring/zigzag if nothing is said; schedules and layouts by\n"
                "Ringlab's names: joined-ring/zigzag, double-ring:2/striped:64", "ring/zigzag", _check, _make)
