"""Draws how far predictions hold: predicted against measured times beside naive guesses, and a predicted timeline over the
measured one."""

# %% [markdown]
# # Validation
# Every point is a pass of a ring that no calibration has seen: measured (median, slowest rank), and predicted from a
# machine file that was fitted to parts. A naive guess adds up, step by step, the larger of compute and transfer, or both.

# %%
import math

import numpy as np
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

import figures

arguments = figures.arguments(__doc__, "validate.h5", "predicted_4xh200.h5", "predicted_2cpus.h5")
runs = figures.read_runs(arguments.records, "validate")
GUESSES = {"predicted": ("error", figures.BLUE, "o"), "max(compute, transfer)": ("error_overlapped", "0.45", "^"),
           "compute + transfer": ("error_serial", "0.7", "v")}
PREDICTED, MEASURED = figures.BLUE, figures.DARK


# %%
def name_of(machine, record):
    """A record's file, short enough for a title."""
    return f"{record.stem}, predicted on {machine}"


def passes(cases):
    """(run, pass, measured seconds, {guess: relative error})."""
    for run in cases:
        for which in figures.PASSES:
            errors = {guess: run[f"{column}_{which}"] for guess, (column, *_) in GUESSES.items()}
            yield run, which, run[f"seconds_measured_{which}"], errors


def score(errors):
    errors = np.sort(np.abs(errors))
    return f"mean {100 * errors.mean():.1f} %, 95th {100 * errors[math.ceil(0.95 * len(errors)) - 1]:.1f} %"


# %% [markdown]
# ## Predicted against measured

# %%
def draw_scatter(cases, title):
    found = list(passes(cases))
    seconds = 1e3 * np.array([measured for _, _, measured, _ in found])
    sizes = sorted({run.tokens_per_rank for run, *_ in found})
    place = np.array([sizes.index(run.tokens_per_rank) for run, *_ in found], float)
    spread = 100 * np.median([run[f"spread_measured_{which}"] for run, which, *_ in found])
    figure, (line,) = figures.panels(1, 2, 2.8)
    line[0].plot([seconds.min(), seconds.max()], [seconds.min(), seconds.max()], color="0.8", lw=0.8, zorder=0)
    line[1].axhspan(-spread, spread, color="0.92", zorder=0)
    line[1].axhline(0, color="0.8", lw=0.8, zorder=0)
    handles = []
    for number, (guess, (_, color, marker)) in reversed(list(enumerate(GUESSES.items()))):
        errors = np.array([errors[guess] for *_, errors in found])
        style = dict(color=color, marker=marker, ls="", ms=3, alpha=0.8, mew=0)
        line[0].loglog(seconds, seconds * (1 + errors), **style)
        line[1].plot(place + 0.2 * (number - 1), 100 * errors, **style)
        handles.append(Line2D([], [], label=f"{guess}: {score(errors)}", **style))
        print(f"{title}: {guess}, {len(errors)} passes, {score(errors)}")
    line[0].set_xlabel("measured, ms")
    line[0].set_ylabel("predicted, ms")
    line[1].set_xlabel("tokens per rank")
    line[1].set_ylabel("error, %")
    line[1].set_xticks(range(len(sizes)), sizes)
    handles.append(Patch(color="0.92", label=f"spread of the measurements, median {spread:.1f} %"))
    figure.suptitle(title)
    figures.legend_below(figure, handles[::-1], columns=2)
    return figure


# %% [markdown]
# ## A predicted timeline over the measured one

# %%
def draw_over(run, machine, title):
    figure, axes = figures.panels(1, len(figures.PASSES), 0.7 + 0.55 * run["ranks"], sharey=True)
    for axis, which in zip(axes[0], figures.PASSES):
        for source, color, up in ((f"predicted/{machine}", PREDICTED, -0.21), ("measured", MEASURED, 0.21)):
            spans = {name: run.read(f"{source}/{which}/spans/{name}") for name in ("rank", "kind", "begin", "end")}
            computes = np.isin(spans["kind"], ("attend", "merge", "add", "copy", "expand", "compress"))
            for which_spans, height, shift, shade in ((computes, 0.2, -0.06, 0.85), (~computes, 0.06, 0.12, 0.5)):
                for rank in range(run["ranks"]):
                    chosen = which_spans & (spans["rank"] == rank)
                    bars = np.stack((spans["begin"], spans["end"] - spans["begin"]), axis=-1)[chosen] * 1e3
                    axis.broken_barh(bars, (rank + up + shift - height / 2, height), facecolor=color, alpha=shade,
                                     edgecolor="white", linewidth=0.3)
        axis.set_title(which)
        axis.set_xlabel("time, ms")
        axis.set_yticks(range(run["ranks"]))
        axis.set_ylim(run["ranks"] - 0.5, -0.5)
    axes[0, 0].set_ylabel("rank")
    figure.suptitle(title)
    figures.legend_below(figure, [Patch(color=PREDICTED, label="predicted"), Patch(color=MEASURED, label="measured"),
                                  Line2D([], [], color="0.5", lw=1, label="thin: transfers")], columns=3)
    return figure


# %% [markdown]
# ## What others have published
# Their rings, on a machine file of what they ran on and with what their programs do beside attention. Hollow: a parameter of
# the program was fitted to it.

# %%
def draw_published(cases, title):
    tables = cases.unique("table")
    figure, (line,) = figures.panels(1, len(tables), 2.6)
    for axis, table in zip(line, tables):
        shown = cases.where(table=table)
        for run in shown:
            color = figures.BLUE if run["pass"] == "forward" else figures.VERMILLION
            axis.plot(run["published"], run["predicted"], "o", ms=3.5, mew=0.8, color=color,
                      mfc="none" if run["fitted"] else color)
        unit = shown[0]["unit"]
        ends = [0, 1.05 * max(run[what] for run in shown for what in ("published", "predicted"))]
        axis.plot(ends, ends, color="0.8", lw=0.8, zorder=0)
        axis.set_title(table)
        axis.set_xlabel(f"published, {unit}")
        errors = [abs(run["error"]) for run in shown if not run["fitted"] and run.tokens_per_rank >= 8192]
        print(f"{title}: {table}, from 8192 tokens per GPU on, mean {100 * np.mean(errors):.1f} %, "
              f"largest {100 * max(errors):.1f} %")
    line[0].set_ylabel("predicted, the same unit")
    figure.suptitle("Others' rings, predicted against published")
    figures.legend_below(figure, [Line2D([], [], color=color, marker="o", ls="", ms=3.5, label=label) for color, label in
                                  ((figures.BLUE, "forward"), (figures.VERMILLION, "forward and backward"))], columns=2)
    return figure


# %%
for record in dict.fromkeys(run.record for run in runs):
    cases = figures.Runs(run for run in runs if run.record == record)
    if "published" in cases[0].attributes:
        figures.save(draw_published(cases, record.stem), arguments.figures, record.stem)
        continue
    for machine in cases.unique("machine"):
        title = name_of(machine, record)
        figures.save(draw_scatter(cases.where(machine=machine), title), arguments.figures, record.stem, machine)
        traced = [run for run in cases if "measured/forward/spans/end" in run]
        if traced:
            shown = max(traced, key=lambda run: (run["mask"] == "causal", run["layout"] == "zigzag", run["tokens"]))
            figures.save(draw_over(shown, machine, shown.name), arguments.figures, record.stem, machine, "timeline")
