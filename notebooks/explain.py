"""Draws which part of a pass owns the errors of predictions: mean difference of each part between the predicted and the
measured pass, by transport, ranks and tokens per rank."""

# %% [markdown]
# # Who owns the error of a prediction
# `validate --measured FILE --explain` splits the error of a pass among what the rank that ends last does. Differences are
# without sign here, so parts that cancel each other add up to more than the error (black line).

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "explain.h5", "explain.h5")
runs = figures.read_runs(arguments.records, "validate")
PARTS = {"compute": figures.BLUE, "launches": figures.ORANGE, "exposed_transfer": figures.VERMILLION,
         "waiting_for_peers": figures.GREEN, "rest": figures.GREY}
LENGTHS = {"below 2Ki": (0, 2048), "2Ki to 8Ki": (2048, 8192), "from 8Ki": (8192, np.inf)}


# %%
def share(run, part, name):
    """Of the measured time, in %; NaN for a pass without measured spans."""
    return 100 * run[f"difference_{part}_{name}"] / run[f"seconds_measured_{name}"]


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
    for part, color in PARTS.items():
        widths = np.nan_to_num([mean([share(run, part, name) for run in sets[key]]) for key in order])
        axis.barh(range(len(order)), widths, left=left, height=0.7, color=color, label=part.replace("_", " "))
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
        parts = {part: mean([share(run, part, name) for run in sets[key]]) for part in PARTS}
        print(f"{key[0]} P={key[1]} {key[2]} {name}: error {mean([error(run, name) for run in sets[key]]):.1f} %; "
              + ", ".join(f"{part} {value:.1f}" for part, value in sorted(parts.items(), key=lambda part: -part[1])))
