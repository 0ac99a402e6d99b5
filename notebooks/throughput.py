"""Draws how fast rings are: TFLOP/s per GPU against tokens per GPU, beside the same work on one GPU and a matrix product."""

# %% [markdown]
# # Throughput
# All rates count visible pairs, of the slowest rank, median.

# %%
import math

from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "throughput.h5", "throughput_2xh100_schedules.h5", "throughput_4xh100_schedules.h5")
runs = figures.read_runs(arguments.records, "throughput")
TRANSPORT_LINES = {"copy": "-", "nccl": (0, (4, 2))}


# %%
def rates(runs, which):
    """TFLOP/s per GPU, NaN where it was not timed."""
    return [run.attributes.get(f"rate_{which}", math.nan) / 1e12 for run in runs]


def draw(rings, alone, matrix_product):
    by = "schedule" if len(rings.unique("schedule")) > 2 else "layout"  # what colours tell apart
    styles = (figures.layout_styles(rings) if by == "layout"
              else {name: figures.schedule_style(name) for name in rings.unique("schedule")})
    sizes = sorted({run.tokens_per_rank for run in rings})
    beside = sorted(alone, key=lambda run: run["tokens"])
    figure, axes = figures.panels(1, 2, 3.0, sharey=True)
    for axis, which, title in zip(axes.flat, ("forward", "both"), ("forward", "forward and backward")):
        for layout, transport, schedule in rings.unique("layout", "transport", "schedule"):
            line = sorted(rings.where(layout=layout, transport=transport, schedule=schedule),
                          key=lambda run: run.tokens_per_rank)
            color, marker = styles[line[0][by]]
            axis.plot([run.tokens_per_rank for run in line], rates(line, which), color=color, marker=marker,
                      mfc=color if schedule == "ring" or by == "schedule" else "none",
                      ls=TRANSPORT_LINES.get(transport, "-"))
        # A sequence on one GPU with as much work as a rank has belongs to the ring's tokens per GPU.
        if len(beside) == len(sizes):
            axis.plot(sizes, rates(beside, which), color=figures.DARK, marker="D", ls=":")
        axis.axhline(matrix_product, color=figures.DARK, lw=0.6)
        axis.set(title=title, xlabel="tokens per GPU", ylabel="TFLOP/s per GPU")
        figures.scale_by_tokens(axis, sizes)
        axis.grid(axis="y")
    figures.start_at_zero(axes)
    handles = [Line2D([], [], color=style.color, marker=style.marker, label=label) for label, style in styles.items()]
    handles += [Line2D([], [], color=figures.GREY, ls=TRANSPORT_LINES.get(transport, "-"), label=transport)
                for transport in rings.unique("transport")]
    handles += [Line2D([], [], color=figures.DARK, marker="s", mfc="none", label=f"{schedule} (hollow)")
                for schedule in rings.unique("schedule") if schedule != "ring" and by == "layout"]
    handles += [Line2D([], [], color=figures.DARK, marker="D", ls=":", label="same work on one GPU"),
                Line2D([], [], color=figures.DARK, lw=0.6, label="matrix product")]
    figures.legend_below(figure, handles, 4)
    return figure


# %%
matrix_product = max(rates(runs.where(kind="ceilings"), "matrix_product"), default=math.nan)
for label, cases in runs.where(kind="ring").groups("shape", "mask", "gpus", "kernels"):
    same = {name: cases[0][name] for name in ("shape", "mask", "gpus", "kernels")}
    figures.save(draw(cases, runs.where(kind="same work", **same), matrix_product), arguments.figures, "throughput", label)
