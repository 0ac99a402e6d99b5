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
DASHES = (0, (4, 2))


# %%
def draw(axis, cases, which):
    for schedule in cases.unique("schedule"):
        lines = {True: [], False: []}
        for run in cases.where(schedule=schedule):
            lines[run["queries"] == run["padded_tokens"]].append(run)
        for whole, line in lines.items():
            if line:
                figures.draw_times(axis, line, which, figures.schedule_style(schedule), DASHES if whole else "-", whole)
    figures.scale_both(axis, "tokens, suffix included")


# %%
for path in arguments.records:
    for label, cases in figures.read_runs([path], "predict", "compare_layouts").groups("layout", "ranks"):
        run = min(cases, key=lambda run: run["queries"])
        figure, axes = figures.panels(1, 2, 2.5)
        for axis, which in zip(axes.flat, figures.PASSES):
            draw(axis, cases, which)
            axis.set_title(which)
        axes[0, 0].set_ylabel("ms")
        figure.suptitle(f"{run['queries']} rows, P = {run['ranks']}, {run['layout']}, {run['query_heads']}:"
                        f"{run['kv_heads']} heads of {run['head_dim']}"
                        + "".join(f", {machine}" for machine in run.machines()[:1]))
        figures.legend_below(figure, [
            *(Line2D([], [], color=figures.schedule_style(name).color, label=f"suffix alone: {name}")
              for name in cases.unique("schedule")),
            Line2D([], [], color=figures.schedule_style("ring").color, ls=DASHES,
                   label="dashed: all rows, the whole sequence again")], columns=5)
        figures.save(figure, arguments.figures, path.stem, label)
