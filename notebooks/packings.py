"""Draws how evenly layouts share packed documents: visible pairs, predicted time and measured processor time over many
packings."""

# %% [markdown]
# # Packed documents: balance over a thousand packings
# Documents of real lengths, drawn anew for each packing and put one after another into a sequence. Each curve is a layout:
# the share of packings whose balance, or time, is no larger than this. Balance is the largest rank's share over the mean.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "packings.h5", "packings_h200.h5", "packings_cpu.h5")
runs = figures.read_runs(arguments.records, "packings")


# %%
def spread(axis, values, style, label):
    """The share of packings up to each value."""
    values = np.sort(values)
    axis.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color=style.color, label=label)


def measured_panel(axis, run, machine, style):
    """Processor time beside what was predicted for it, of the packings that were executed."""
    measured = run.read("measured/forward/packing_balance")
    predicted = run.read(f"predicted/{machine}/forward/packing_balance")[:len(measured)]
    axis.plot(predicted, measured, style.marker, color=style.color, ms=2.5)


def draw(cases):
    machines = cases[0].machines()
    measured = "measured/forward/packing_balance" in cases[0]
    figure, axes = figures.panels(1, 1 + len(machines) + measured, 2.4)
    pairs, *others = axes[0]
    fastest = {machine: np.min([run.read(f"predicted/{machine}/forward/packing_seconds") for run in cases], axis=0)
               for machine in machines}
    styles = figures.layout_styles(cases)
    for run in cases:
        style = styles[run["layout"]]
        balance = run.read("work/packing_balance")
        spread(pairs, balance, style, run["layout"])
        line = [f"pairs {balance.mean():.3f} (95 %: {np.percentile(balance, 95):.3f})"]
        for axis, machine in zip(others, machines):
            slower = run.read(f"predicted/{machine}/forward/packing_seconds") / fastest[machine]
            spread(axis, slower, style, run["layout"])
            line.append(f"{machine}: {slower.mean():.3f} of the fastest layout's time")
        if measured:
            measured_panel(others[-1], run, machines[0], style)
            line.append(f"measured {run.read('measured/forward/packing_balance').mean():.3f}")
        print(f"{run['layout']}, {run['tokens']} tokens: " + ", ".join(line))
    pairs.set(xlabel="balance in visible pairs", ylabel="share of packings", xlim=(0.98, 3))
    for axis, machine in zip(others, machines):
        axis.set(xlabel=f"time over the fastest layout's\npredicted: {machine}", xlim=(0.98, 2.5))
    if measured:
        others[-1].axline((1, 1), slope=1, color="black", lw=0.6)
        others[-1].set(xlabel=f"balance, predicted: {machines[0]}", ylabel="measured in processor time")
    run = cases[0]
    figure.suptitle(f"{run['packings']} packings of {run['tokens']} tokens over {run['ranks']} ranks, mask {run['mask']} "
                    "and documents, forward")
    figures.legend_below(figure, pairs.get_legend_handles_labels()[0], columns=len(cases))
    return figure


for label, cases in runs.groups("tokens", "ranks", "mask"):
    figures.save(draw(cases), arguments.figures, "packings", label)
