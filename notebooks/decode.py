"""Draws what a token costs when keys and values are sharded: time of one layer's attention from the newest tokens against
the length of what they look back on, by schedule, measured (records of decode) and predicted (of decode, or of predict
--queries 1)."""

# %% [markdown]
# # Decoding over a sharded cache
# Marks are measured, lines predicted on a machine. merge leaves the cache where it is and brings partial results
# together; pass-q lets the row visit one rank after another; ring and all-gather move the cache to the row.

# %%
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "decode.h5", "decode_2cpus.h5", "decode_predicted.h5")
COLORS = {"merge": figures.BLUE, "merge:tree": figures.SKY, "pass-q": figures.GREEN, "ring": figures.VERMILLION,
          "all-gather": figures.ORANGE, "bidirectional": figures.PURPLE, "pull": figures.DARK}
MARKERS = {"merge": "o", "merge:tree": "v", "pass-q": "s", "ring": "^", "all-gather": "D"}


# %%
def panels_of(runs):
    """(title, runs, machine or nothing) for each layout, ring size and machine."""
    for label, cases in runs.groups("layout", "ranks", "queries"):
        for machine in cases[0].machines() or [None]:
            run = cases[0]
            heads = f"{run['query_heads']}:{run['kv_heads']} heads of {run['head_dim']}"
            yield f"P = {run['ranks']}, {run['layout']}, {heads}\npredicted on {machine}", cases, machine


def draw(axis, title, cases, machine):
    axis.set_title(title)
    for schedule in cases.unique("algorithm"):
        line = sorted(cases.where(algorithm=schedule), key=lambda run: run["tokens"])
        color = COLORS.get(schedule, figures.GREY)
        tokens = [run["tokens"] for run in line]
        if machine:
            axis.plot(tokens, [1e3 * run[f"seconds_predicted_forward_{machine}"] for run in line], color=color)
        if "measured/forward/seconds" in line[0]:
            axis.plot(tokens, [1e3 * run["seconds_measured_forward"] for run in line], MARKERS.get(schedule, "x"),
                      color=color, mfc="none")
    figures.scale_by_tokens(axis)
    axis.set_yscale("log")
    axis.grid(True)
    axis.set_xlabel("tokens in the cache")


# %%
panels = [panel for path in arguments.records for panel in panels_of(figures.read_runs([path], "decode", "predict"))]
figure, axes = figures.panels(1, len(panels), 2.6)
for axis, panel in zip(axes.flat, panels):
    draw(axis, *panel)
axes[0, 0].set_ylabel("ms for a token, one layer")
schedules = list(dict.fromkeys(name for _, cases, _ in panels for name in cases.unique("algorithm")))
figures.legend_below(figure, [
    *(Line2D([], [], color=COLORS.get(name, figures.GREY), marker=MARKERS.get(name, "x"), mfc="none", label=name)
      for name in schedules)], columns=7)
figures.save(figure, arguments.figures, "decode")
