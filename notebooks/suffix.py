"""Draws what a short suffix costs that attends to a prefix whose keys and values are sharded, against recomputing the
whole sequence in the ring: time of both passes by length, from records of predict or compare_layouts --queries 0 N."""

# %% [markdown]
# # A suffix after a sharded prefix
# Dashed: every token has a query row, and the whole sequence goes through the ring again. Lines: only the suffix has,
# and all-gather collects the prefix's keys and values once and computes the suffix where its rows are, ring lets them
# pass by, pass-q and merge let the rows travel. Marks are measured, where the record holds measurements.

# %%
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "suffix.h5", "suffix_predicted.h5", "suffix_cpu.h5")
COLORS = {"merge": figures.BLUE, "merge:tree": figures.SKY, "pass-q": figures.GREEN, "ring": figures.VERMILLION,
          "all-gather": figures.ORANGE}
MARKERS = {"merge": "o", "merge:tree": "v", "pass-q": "s", "ring": "^", "all-gather": "D"}


# %%
def draw(axis, cases, which):
    """Lines of what is predicted on the first machine, marks of what was measured."""
    machine = (cases[0].machines() or [None])[0]
    for schedule, whole in sorted({(run["algorithm"], run["queries"] == run["padded_tokens"]) for run in cases}):
        line = sorted((run for run in cases if run["algorithm"] == schedule
                       and (run["queries"] == run["padded_tokens"]) == whole), key=lambda run: run["tokens"])
        color, tokens = COLORS.get(schedule, figures.GREY), [run["tokens"] for run in line]
        if machine:
            axis.plot(tokens, [1e3 * run[f"seconds_predicted_{which}_{machine}"] for run in line], color=color,
                      ls=(0, (4, 2)) if whole else "-")
        if f"measured/{which}/seconds" in line[0]:
            axis.plot(tokens, [1e3 * run[f"seconds_measured_{which}"] for run in line], MARKERS.get(schedule, "x"),
                      color=color, mfc=color if whole else "none")
    figures.scale_by_tokens(axis)
    axis.set_yscale("log")
    axis.grid(True)
    axis.minorticks_off()
    axis.set_xlabel("tokens, suffix included")


# %%
for path in arguments.records:
    for label, cases in figures.read_runs([path], "predict", "compare_layouts").groups("layout", "ranks"):
        run = min(cases, key=lambda run: run["queries"])
        figure, axes = figures.panels(1, 2, 2.5)
        for axis, which in zip(axes.flat, figures.PASSES):
            draw(axis, cases, which)
            axis.set_title(which)
        axes[0, 0].set_ylabel("ms")
        on = f", {run.machines()[0]}" if run.machines() else ""
        figure.suptitle(f"{run['queries']} rows, P = {run['ranks']}, {run['layout']}, {run['query_heads']}:"
                        f"{run['kv_heads']} heads of {run['head_dim']}{on}")
        figures.legend_below(figure, [
            *(Line2D([], [], color=COLORS.get(name, figures.GREY), label=f"suffix alone: {name}")
              for name in cases.unique("algorithm")),
            Line2D([], [], color=COLORS["ring"], ls=(0, (4, 2)), label="dashed: all rows, the whole sequence again")], columns=5)
        figures.save(figure, arguments.figures, path.stem, label)
