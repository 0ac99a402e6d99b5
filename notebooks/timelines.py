"""Draws timelines of forward and backward pass, layouts below each other: predicted on each machine, and measured. What
a rank computes, what it transfers meanwhile, and where it waits."""

# %% [markdown]
# # Timelines
# One band per rank: the thick bar is what it computes, the thin lines below are its transfers, a line per lane, grey
# while one side waits for the other. The colour tells whose block of tokens it is about. Hatched: the rank waits, for a
# block or for its host to issue the operation; dotted: it has nothing left to compute.

# %%
import numpy as np
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, PathPatch
from matplotlib.path import Path

import figures

arguments = figures.arguments(__doc__, "compare_layouts.h5", "compare_layouts_4xh200.h5")
runs = figures.read_runs(arguments.records, "compare_layouts", "predict")
MOST_BANDS = 16  # of more ranks, some are drawn
COMPUTE = ("attend", "merge", "add", "copy", "expand", "compress")
WAIT = dict(facecolor="white", edgecolor=figures.GREY, hatch="//////", linewidth=0)
DONE = dict(facecolor="white", edgecolor=figures.GREY, hatch="......", linewidth=0)


# %%
def gaps(begin, end, until):
    """Intervals of [0, until) that none of the given ones covers."""
    free = 0.0
    for first, last in sorted(zip(begin, end)):
        if first > free:
            yield free, first
        free = max(free, last)
    if until > free:
        yield free, until


def rectangles(begin, until, middle, height):
    """Corners of horizontal bars. Drawn one by one, thousands of bars take minutes: draw them together."""
    begin, until, middle = np.broadcast_arrays(begin, until, middle)
    low, high = middle - height / 2, middle + height / 2
    return np.stack((begin, low, begin, high, until, high, until, low), axis=-1).reshape(-1, 4, 2)


def draw_timeline(axis, run, path, unit):
    """All spans of the timeline, time in multiples of `unit`. Returns the mean share of the makespan in which ranks
    compute."""
    spans = {name: run.read(f"{path}/{name}") for name in ("rank", "kind", "lane", "block", "posted", "begin", "end")}
    begin, end = spans["begin"] / unit, spans["end"] / unit
    makespan = end.max(initial=0)
    computes = np.isin(spans["kind"], COMPUTE)
    lanes = np.unique(spans["lane"][~computes])
    ranks = run["ranks"]
    color = np.array([to_rgb(color) for color in figures.rank_colors(ranks)])[spans["block"] % ranks]
    shown = np.unique(np.linspace(0, ranks - 1, min(ranks, MOST_BANDS)).astype(int))
    band = np.searchsorted(shown, spans["rank"])
    is_shown = np.isin(spans["rank"], shown)

    waits, ends = [], []
    for place, rank in enumerate(shown):
        compute = computes & (spans["rank"] == rank)
        ends.append(end[compute].max(initial=0))
        waits += [(*gap, place) for gap in gaps(begin[compute], end[compute], ends[-1])]
    first, until, place = np.array(waits).reshape(-1, 3).T
    for style, bars in ((WAIT, rectangles(first, until, place - 0.18, 0.5)),
                        (DONE, rectangles(ends, makespan, np.arange(len(shown)) - 0.18, 0.5))):
        axis.add_patch(PathPatch(Path.make_compound_path_from_polys(bars), **style))  # its hatch is made once

    lane = np.searchsorted(lanes, spans["lane"])
    height = np.where(computes, 0.5, 0.28 / max(len(lanes), 1))
    middle = band + np.where(computes, -0.18, 0.12 + 0.34 * (lane + 0.5) / max(len(lanes), 1))
    for which, style in ((computes, dict(edgecolor="white", linewidth=0.15)), (~computes, dict(linewidth=0))):
        which = which & is_shown
        bars = rectangles(begin[which], end[which], middle[which], height[which])
        axis.add_collection(PolyCollection(bars, facecolor=color[which], **style), autolim=False)
    waiting = ~computes & is_shown & (spans["posted"] < spans["begin"])
    bars = rectangles(spans["posted"][waiting] / unit, begin[waiting], middle[waiting], 0.3 * height[waiting])
    axis.add_collection(PolyCollection(bars, facecolor="0.8", linewidth=0), autolim=False)
    axis.set_yticks(range(len(shown)), shown)
    axis.set_ylim(len(shown) - 0.5, -0.5)
    axis.tick_params(axis="y", length=0)
    axis.axvline(makespan, color="black", lw=0.8)
    return (end - begin)[computes].sum() / ranks / makespan if makespan else 1


# %% [markdown]
# The two columns have a time axis each; the layouts in a column share it.

# %%
def draw(cases, source, title):
    layouts = cases.unique("layout")
    ends = [run.read(f"{source}/{which}/spans/end").max(initial=0) for run in cases for which in figures.PASSES]
    unit, unit_name = (1e-3, "ms") if max(ends) > 1e-3 else (1e-6, "µs")
    longest = {}
    figure, axes = figures.panels(len(layouts), len(figures.PASSES), 2.1, sharex="col", sharey=True)
    for line, layout in zip(axes, layouts):
        run = cases.where(layout=layout)[0]
        for axis, which in zip(line, figures.PASSES):
            path = f"{source}/{which}/spans"
            computing = draw_timeline(axis, run, path, unit)
            makespan = run.read(f"{path}/end").max(initial=0) / unit
            axis.set_title(f"{layout}, {which}: {makespan:.4g} {unit_name}, computing {100 * computing:.0f} %")
            longest[which] = max(longest.get(which, 0), makespan)
            print(f"{run.name}, {which}, {source}: {makespan:.4g} {unit_name}, computing {100 * computing:.1f} %")
        line[0].set_ylabel("rank")
    for axis, which in zip(axes[-1], figures.PASSES):
        axis.set_xlabel(f"time, {unit_name}")
        axis.set_xlim(0, 1.01 * longest[which])
    figure.suptitle(title)
    colors = figures.rank_colors(run["ranks"])
    shown = range(len(colors)) if len(colors) <= 8 else np.linspace(0, len(colors) - 1, 8).astype(int)
    figures.legend_below(figure, [*(Patch(color=colors[rank], label=f"block of rank {rank}") for rank in shown),
                                  Line2D([], [], color=figures.GREY, label="transfer"), Patch(label="waits", **WAIT),
                                  Patch(label="has ended", **DONE)], columns=6)
    return figure


def shared_by_ranks(run):
    """What makes ranks wait for each other that would not in a real ring."""
    how = figures.configuration(run)
    if how.get("backend") == "cuda":
        return ", ranks take turns on a GPU" if how.get("transport") == "loopback" else ""
    return ", ranks share the processors"


for label, cases in runs.groups("mask", "ranks", "tokens", "schedule"):
    run = cases[0]
    about = f"{run['schedule']}, {run['mask']} mask, {run['tokens']} tokens over {run['ranks']} ranks"
    for machine in run.machines():
        source = f"predicted/{machine}"
        drawn = figures.Runs(c for c in cases if f"{source}/forward/spans" in c)
        if drawn:
            figures.save(draw(drawn, source, f"Predicted on {machine}: {about}"), arguments.figures, "timelines", label,
                         machine)
    if "measured/forward/spans" in run:
        figures.save(draw(cases, "measured", f"Measured, wall clock{shared_by_ranks(run)}: {about}"),
                     arguments.figures, "timelines", label, "measured")
