"""Draws the balance of work between ranks: visible pairs, predicted compute time and measured processor time of each
rank beside each other, each relative to its mean."""

# %% [markdown]
# # Load balance, predicted beside measured
# Each rank's share of three things, 1 being the mean: visible query-key pairs, which follow from mask and layout alone;
# compute time as predicted on a machine; processor time as measured in the executed schedule (median of the repeats,
# with their range). Largest over mean is what a lockstep ring loses.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "compare_layouts.h5", "compare_layouts_cpu.h5")
runs = figures.read_runs(arguments.records, "compare_layouts")
MACHINE_STYLES = (("D", figures.VERMILLION), ("^", figures.PURPLE), ("v", figures.GREEN), ("s", figures.SKY))
PAIRS = "#D0D0D0"
LEGEND_ORDER = {"visible": 0, "predicted:": 1, "measured": 2}


# %%
def shares(values):
    return values / values.mean() if values.mean() > 0 else np.ones_like(values, dtype=float)


def measured_shares(run, which):
    """Median, lowest and highest share of each rank over the repeats (and replicas)."""
    times = run.read(f"measured/{which}/attend_time")
    each = np.array([shares(sample) for sample in times.reshape(-1, times.shape[-1])])
    middle = shares(np.median(times.reshape(-1, times.shape[-1]), axis=0))
    return middle, np.minimum(each.min(axis=0), middle), np.maximum(each.max(axis=0), middle)


def draw_panel(axis, run, which):
    """One run. Returns largest over mean, and the mark that it is drawn with, by what was counted."""
    rank = np.arange(run["ranks"])
    largest, marks = {"pairs": shares(run.read("work/pairs_of_rank"))}, {"pairs": dict(marker="s", color=PAIRS, ms=4.5)}
    axis.bar(rank, largest["pairs"], 0.85, color=PAIRS, label="visible pairs")
    machines = run.machines()
    offsets = np.linspace(-0.22, 0.22, len(machines) + 1)
    for machine, offset, (marker, color) in zip(machines, offsets, MACHINE_STYLES):
        largest[machine] = shares(run.read(f"predicted/{machine}/{which}/compute_time"))
        marks[machine] = dict(marker=marker, color=color, ms=3.2)
        axis.plot(rank + offset, largest[machine], ls="", label=f"predicted: {machine}", **marks[machine])
    if f"measured/{which}/attend_time" in run:
        middle, low, high = measured_shares(run, which)
        largest["measured"] = middle
        marks["measured"] = dict(marker="o", color=figures.BLUE, ms=3.2, mfc="white", mew=0.9)
        axis.errorbar(rank + offsets[-1], middle, [middle - low, high - middle], ls="", elinewidth=0.8, capsize=1.5,
                      label="measured processor time", **marks["measured"])
    axis.axhline(1, color="black", lw=0.6)
    if run["mask"] == "causal" and run["layout"] == "contiguous" and run["ranks"] > 1:
        axis.axhline(2 - 1 / run["ranks"], color=figures.DARK, ls=(0, (4, 2)), lw=0.9)
        axis.text(-0.4, 2 - 1 / run["ranks"], "2 - 1/P", va="bottom", fontsize=6)
    return {name: share.max() for name, share in largest.items()}, marks


def write_largest(axis, largest, marks):
    """Above the panel: each number behind the mark that the legend explains."""
    for place, (name, value) in enumerate(largest.items()):
        x = (place + 0.5) / len(largest)
        axis.plot([x - 0.075], [1.065], ls="", transform=axis.transAxes, clip_on=False, **marks[name])
        axis.text(x + 0.02, 1.06, f"{value:.3f}", transform=axis.transAxes, ha="center", va="center", fontsize=6)


# %% [markdown]
# The numbers above a panel are largest over mean: of the visible pairs, of each prediction and measured, each behind its
# mark in the legend.

# %%
def draw(cases, which):
    masks, layouts = cases.unique("mask"), cases.unique("layout")
    figure, axes = figures.panels(len(masks), len(layouts), 1.6, sharex=True, sharey="row")
    for line, mask in zip(axes, masks):
        for axis, layout in zip(line, layouts):
            for run in cases.where(mask=mask, layout=layout)[:1]:
                largest, marks = draw_panel(axis, run, which)
                legend = axis.get_legend_handles_labels()[0]
                axis.set_title(layout, fontsize=7, pad=11)
                write_largest(axis, largest, marks)
                axis.margins(y=0.12)
                figures.count_ticks(axis.xaxis, run["ranks"])
                print(f"{run.name}, {which}: largest / mean of "
                      + ", ".join(f"{name} {value:.3f}" for name, value in largest.items()))
        line[0].set_ylabel(f"{mask}\nshare / mean")
    for axis in axes[-1]:
        axis.set_xlabel("rank")
    figure.suptitle(f"Balance of the {which} pass, {cases[0]['ranks']} ranks, {cases[0]['tokens']} tokens "
                    "(numbers: largest / mean, by their marks)")
    figures.start_at_zero(axes)
    figures.legend_below(figure, sorted(legend, key=lambda handle: LEGEND_ORDER[handle.get_label().split()[0]]),
                         columns=3 if len(legend) <= 3 else 2)
    return figure


for label, cases in runs.groups("ranks", "tokens", "schedule", "input"):
    for which in figures.PASSES:
        figures.save(draw(cases, which), arguments.figures, "balance", which, label)

# %% [markdown]
# The causal mask alone: measured processor time of each rank, and hollow what was predicted on the first machine.

# %%
def draw_causal(cases):
    figure, axis = figures.plt.subplots(figsize=(4.6, 2.6))
    styles = figures.layout_styles(cases)
    for run in cases:
        rank, style = np.arange(run["ranks"]), styles[run["layout"]]
        measured = measured_shares(run, "forward")[0]
        predicted = shares(run.read(f"predicted/{run.machines()[0]}/forward/compute_time"))
        axis.plot(rank, measured, color=style.color, marker=style.marker, label=f"{run['layout']}, measured")
        axis.plot(rank, predicted, ls="", color=style.color, marker=style.marker, ms=7, mfc="none", mew=0.8,
                  label=f"{run['layout']}, predicted")
    figures.count_ticks(axis.xaxis, cases[0]["ranks"])
    axis.set(xlabel="rank", ylabel="compute time / mean of the ranks", ylim=(0, None),
             title=f"Work of each of {cases[0]['ranks']} ranks under a causal mask")
    axis.legend()
    return figure


for label, cases in runs.groups("ranks", "tokens", "schedule", "input"):
    causal = [run for run in cases.where(mask="causal") if run.machines() and "measured/forward/attend_time" in run]
    if causal:
        figures.save(draw_causal(figures.Runs(causal)), arguments.figures, "balance", "causal", label)
