"""Draws which part of the cost model owns the errors of predicted passes: mean effect of each part when what was measured
replaces what the model says, by transport, ranks and tokens per rank."""

# %% [markdown]
# # Who owns the error of a prediction
# `validate --measured FILE --explain` replays measured rings in the simulator with measured prices in the place of the
# model's. Effects are without sign here, so parts that cancel each other add up to more than the error (black line).

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "explain.h5", "explain.h5")
runs = figures.read_runs(arguments.records, "validate")
OWNERS = {"attends": figures.BLUE, "clock": figures.SKY, "sums": figures.GREEN, "messages": figures.VERMILLION,
          "issue": figures.ORANGE, "begin": figures.PURPLE, "end": figures.YELLOW, "remainder": figures.GREY}
LENGTHS = {"below 2Ki": (0, 2048), "2Ki to 8Ki": (2048, 8192), "from 8Ki": (8192, np.inf)}


# %%
def share(run, owner, name):
    """Of the measured time, in %; NaN for a pass without measured spans."""
    column = f"remainder_{name}" if owner == "remainder" else f"effect_{owner}_{name}"
    return 100 * run[column] / run[f"seconds_measured_{name}"]


def error(run, name):
    return 100 * (run[f"seconds_predicted_{name}"] / run[f"seconds_measured_{name}"] - 1)


def mean(values):
    """Without sign, over passes that have spans."""
    values = np.abs([value for value in values if np.isfinite(value)])
    return values.mean() if len(values) else np.nan


sets = {}
for run in runs:
    length = next(name for name, (least, most) in LENGTHS.items() if least <= run.tokens_per_rank < most)
    sets.setdefault((run["transport"], int(run["ranks"]), length), []).append(run)
order = sorted(sets, key=lambda key: (key[0], key[1], list(LENGTHS).index(key[2])), reverse=True)

# %%
figure, axes = figures.panels(1, 2, 0.26 * len(order) + 1.2, sharex=True, sharey=True)
for axis, name in zip(axes.flat, figures.PASSES):
    left = np.zeros(len(order))
    for owner, color in OWNERS.items():
        widths = np.nan_to_num([mean([share(run, owner, name) for run in sets[key]]) for key in order])
        axis.barh(range(len(order)), widths, left=left, height=0.7, color=color, label=owner)
        left += widths
    errors = [mean([error(run, name) for run in sets[key]]) for key in order]
    axis.plot(errors, range(len(order)), "|", color="black", ms=11, mew=1.6, label="error")
    axis.set_title(name)
    axis.set_xlabel("mean without sign, % of the measured time")
    axis.grid(axis="x")
axes.flat[0].set_yticks(range(len(order)), [f"{transport}, P = {ranks}, {length} ({len(sets[transport, ranks, length])})"
                                           for transport, ranks, length in order])
figures.legend_below(figure, axes.flat[0].get_legend_handles_labels()[0], columns=9)
figures.save(figure, arguments.figures, "explain")

# %%
for key in reversed(order):
    for name in figures.PASSES:
        parts = {owner: mean([share(run, owner, name) for run in sets[key]]) for owner in OWNERS}
        print(f"{key[0]} P={key[1]} {key[2]} {name}: error {mean([error(run, name) for run in sets[key]]):.1f} %; "
              + ", ".join(f"{owner} {value:.1f}" for owner, value in sorted(parts.items(), key=lambda part: -part[1])))
