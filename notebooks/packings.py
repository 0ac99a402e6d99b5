"""Draws how evenly layouts share packed documents: visible pairs, predicted time and measured processor time over many
packings."""

# %% [markdown]
# # Packed documents: balance over many packings
# Documents of real lengths, drawn anew for each packing (`experiments/packings.py`). Each curve is a layout: the share of
# packings whose balance, or time, is no larger than this. Balance is the largest rank's share over the mean.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "packings.h5", "packings_planned.h5", "packings_cpu.h5")
runs = figures.read_runs(arguments.records, "predict", "compare_layouts")


# %%
def spread(axis, values, style, label):
    """The share of packings up to each value."""
    values = np.sort(values)
    axis.step(values, np.arange(1, len(values) + 1) / len(values), where="post", color=style.color, label=label)


def column(cases, name):
    return np.array([run.attributes.get(name, np.nan) for run in cases])


def draw(cases):
    layouts = list(dict.fromkeys(run["layout"] for run in cases))
    by_layout = {layout: cases.where(layout=layout) for layout in layouts}
    machine = cases[0].machines()[0]
    measured = "balance_measured_forward" in cases[0].attributes
    figure, axes = figures.panels(1, 2 + measured, 2.4)
    pairs, time, *beside = axes[0]
    seconds = {layout: column(of, f"seconds_predicted_forward_{machine}") for layout, of in by_layout.items()}
    fastest = np.min(list(seconds.values()), axis=0)
    styles = figures.layout_styles(cases)
    for layout, of in by_layout.items():
        style, balance = styles[layout], column(of, "balance_pairs")
        spread(pairs, balance, style, layout)
        spread(time, seconds[layout] / fastest, style, layout)
        line = f"pairs {balance.mean():.3f} (95 %: {np.percentile(balance, 95):.3f}), " \
               f"{np.mean(seconds[layout] / fastest):.3f} of the fastest layout's time"
        if measured:
            found, predicted = (column(of, f"balance_{kind}_forward{of_machine}") for kind, of_machine in
                                (("measured", ""), ("predicted", f"_{machine}")))
            beside[0].plot(predicted, found, style.marker, color=style.color, ms=2.5)
            line += f", measured {found.mean():.3f}, predicted {predicted.mean():.3f}"
        print(f"{layout}, {of[0]['tokens']} tokens, {len(of)} packings: {line}")
    pairs.set(xlabel="balance in visible pairs", ylabel="share of packings", xlim=(0.98, 3))
    time.set(xlabel=f"time over the fastest layout's\npredicted: {machine}", xlim=(0.98, 2.5))
    if measured:
        beside[0].axline((1, 1), slope=1, color="black", lw=0.6)
        beside[0].set(xlabel=f"balance, predicted: {machine}", ylabel="measured in processor time")
    figure.suptitle(f"{len(cases) // len(layouts)} packings of {cases[0]['tokens']} tokens over {cases[0]['ranks']} ranks, forward")
    figures.legend_below(figure, pairs.get_legend_handles_labels()[0], columns=len(layouts))
    return figure


for label, cases in runs.groups("tokens", "ranks"):
    figures.save(draw(cases), arguments.figures, "packings", label)
