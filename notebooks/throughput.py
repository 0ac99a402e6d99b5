"""Draws how fast rings and kernels are: TFLOP/s per GPU against tokens per GPU, beside the same work on one GPU, a
matrix product and other systems; and our kernels alone beside cuDNN's."""

# %% [markdown]
# # Throughput
# All rates count visible pairs, of the slowest rank, median. Everything but the other systems (`peers.csv`) is from the
# record.

# %%
import csv
import math

from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter

import figures

arguments = figures.arguments(__doc__, "throughput.h5", "throughput_h200.h5", "throughput_4xh200_schedules.h5",
                              "throughput_2xh200_schedules.h5")
runs = figures.read_runs(arguments.records, "throughput")
PASS_TITLES = {"forward": "forward", "both": "forward and backward"}
SCHEDULE_STYLES = [figures.Style(color, marker) for color, marker in zip(figures.PALETTE, "os^vDPX*")]
TRANSPORT_LINES = {"copy": "-", "nccl": (0, (4, 2))}
MEASURED_GPUS, MEASURED_SHAPE, MEASURED_MASK = 4, "32:8/128/bf16", "causal"  # what peers.csv is of


# %%
def rate(run, name):
    """TFLOP/s per GPU, NaN where it was not timed."""
    return run.attributes.get(f"rate_{name}", math.nan) / 1e12


def tokens_per_gpu(run):
    return run["tokens"] / run["ranks"]


def peers(which):
    """Rates of other systems by tokens per GPU: {system: {tokens: TFLOP/s}}."""
    with open(figures.NOTEBOOKS / "peers.csv", newline="") as file:
        rows = csv.DictReader(line for line in file if not line.startswith("#"))
        return {row["system"]: {int(tokens): float(value) for tokens, value in row.items() if tokens.isdigit()}
                for row in rows if row["pass"] == which}


def matrix_product():
    """TFLOP/s of the matrix product in the records; NaN if there is none."""
    return max((rate(run, "matrix_product") for run in runs if run["kind"] == "ceilings"), default=math.nan)


# %% [markdown]
# ## Rings

# %%
def draw_rings(rings, alone):
    by = "algorithm" if len(rings.unique("algorithm")) > 2 else "layout"  # what colours tell apart
    styles = figures.layout_styles(rings) if by == "layout" else dict(zip(rings.unique("algorithm"), SCHEDULE_STYLES))
    figure, axes = figures.panels(1, 2, 3.0, sharey=True)
    comparable = all(run["gpus"] == MEASURED_GPUS and run["shape"] == MEASURED_SHAPE and run["mask"] == MEASURED_MASK
                     for run in rings)
    others = peers("forward") if comparable else {}
    markers = dict(zip(others, "ov^<>"))
    for axis, (which, title) in zip(axes.flat, PASS_TITLES.items()):
        for (layout, transport, algorithm), style in (
                (key, styles[key[0 if by == "layout" else 2]])
                for key in rings.unique("layout", "transport", "algorithm")):
            line = sorted(rings.where(layout=layout, transport=transport, algorithm=algorithm), key=tokens_per_gpu)
            axis.plot([tokens_per_gpu(run) for run in line], [rate(run, which) for run in line], color=style.color,
                      marker=style.marker,
                      mfc=style.color if algorithm == "ring" or by == "algorithm" else "none",
                      ls=TRANSPORT_LINES.get(transport, "-"))
        sizes = sorted({tokens_per_gpu(run) for run in rings})
        # A sequence on one GPU with as much work as a rank has belongs to the ring's tokens per GPU.
        beside = sorted(alone, key=lambda run: run["tokens"])
        if len(beside) == len(sizes):
            axis.plot(sizes, [rate(run, which) for run in beside], color=figures.DARK, marker="D", ls=":")
        for system, values in (peers(which) if comparable else {}).items():
            axis.plot(list(values), list(values.values()), color=figures.GREY, lw=0.7, marker=markers[system],
                      mfc="none")
        if not math.isnan(matrix_product()):
            axis.axhline(matrix_product(), color=figures.DARK, lw=0.6)
        axis.set(title=title, xscale="log", xlabel="tokens per GPU", ylabel="TFLOP/s per GPU")
        axis.set_xticks(sizes)
        axis.minorticks_off()
        axis.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: f"{tokens / 1024:g}Ki"))
        axis.grid(axis="y")
    figures.start_at_zero(axes)
    handles = [Line2D([], [], color=style.color, marker=style.marker, label=label) for label, style in styles.items()]
    handles += [Line2D([], [], color=figures.GREY, ls=TRANSPORT_LINES.get(transport, "-"), label=transport)
                for transport in rings.unique("transport")]
    handles += [Line2D([], [], color=figures.DARK, marker="s", mfc="none", label=f"{algorithm} (hollow)")
                for algorithm in rings.unique("algorithm") if algorithm != "ring" and by == "layout"]
    handles += [Line2D([], [], color=figures.DARK, marker="D", ls=":", label="same work on one GPU"),
                Line2D([], [], color=figures.DARK, lw=0.6, label="matrix product")]
    handles += [Line2D([], [], color=figures.GREY, lw=0.7, marker=markers[system], mfc="none", label=system)
                for system in others]
    figures.legend_below(figure, handles, 3)
    return figure


# %% [markdown]
# ## Kernels alone
# Bars: our kernels in colour, cuDNN in grey, in the same run and in turns. The number over a pair is their ratio.

# %%
def short(mask):
    return mask if len(mask) < 14 else mask[:12] + "…"


def draw_kernels(cases):
    figure, axes = figures.panels(2, 1, 2.0, sharex=True)
    labels = [f"{run['shape'].removesuffix('/bf16')}\n{short(run['mask'])}\n{run['tokens'] / 1024:g}Ki" for run in cases]
    for axis, which, color in zip(axes.flat, figures.PASSES, (figures.BLUE, figures.VERMILLION)):
        for place, run in enumerate(cases):
            own, theirs = rate(run, which), rate(run, f"cudnn_{which}")
            axis.bar(place - 0.2, own, 0.38, color=color)
            if not math.isnan(theirs):
                axis.bar(place + 0.2, theirs, 0.38, color=figures.GREY)
                axis.annotate(f"{run[f'ratio_{which}']:.2f}", (place, max(own, theirs)), ha="center",
                              va="bottom", fontsize=6)
        if not math.isnan(matrix_product()):
            axis.axhline(matrix_product(), color=figures.DARK, lw=0.6)
        axis.set(title=which, ylabel="TFLOP/s")
        axis.grid(axis="y")
    axes[-1, 0].set_xticks(range(len(cases)), labels, fontsize=5)
    figures.legend_below(figure, [Patch(color=figures.BLUE, label="Ringlab, forward"),
                                  Patch(color=figures.VERMILLION, label="Ringlab, backward"),
                                  Patch(color=figures.GREY, label="cuDNN"),
                                  Line2D([], [], color=figures.DARK, lw=0.6, label="matrix product")], 4)
    return figure


# %%
for label, cases in runs.where(kind="ring").groups("shape", "mask", "gpus", "kernels"):
    alone = runs.where(kind="same work", shape=cases[0]["shape"], mask=cases[0]["mask"], gpus=cases[0]["gpus"],
                       kernels=cases[0]["kernels"])
    figures.save(draw_rings(cases, alone), arguments.figures, "throughput_rings", label)
for label, cases in runs.where(kind="device").groups("kernels"):
    figures.save(draw_kernels(cases), arguments.figures, "throughput_kernels", label)
