"""Draws whether attention over P ranks is the same function as on one device: the largest relative error of each
result in fp64, by mask, layout, schedule and ring size."""

# %% [markdown]
# # Gradient equivalence
# Every layout, mask, schedule and ring size was executed in fp64 and compared with dense attention on one device. An
# error is the larger of two: the norm of the difference over the norm of the expected values, and the largest difference
# over the largest expected magnitude. Rounding gives some 1e-16 to 1e-14; a wrong schedule gives 1e-3 or more.

# %%
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LogNorm

import figures

arguments = figures.arguments(__doc__, "gradient_equivalence.h5", "gradient_equivalence_cpu.h5")
runs = figures.read_runs(arguments.records, "gradient_equivalence")
TENSORS = ("o", "lse", "dq", "dk", "dv")
MEASURES = ("relative_rms", "max_relative")


# %%
def shares(run):
    """Of each tensor, the largest share of its tolerance that an error takes up, by norm or by largest element; a NaN
    takes up more than there is."""
    error = np.array([run.read(f"judged/{measure}") for measure in MEASURES])
    limit = np.array([run.read(f"judged/tolerance_{measure}") for measure in MEASURES])
    share = np.divide(error, limit.reshape(len(MEASURES), -1, error.shape[-1]), where=error != 0, out=0 * error)
    share = np.where(np.isnan(share), np.inf, share).max(axis=(0, 1))
    by_name = dict(zip(run.read("tensor"), share))
    return [by_name[tensor] for tensor in TENSORS]


def allowed(run):
    """The largest tolerance of any tensor."""
    return max(run.read(f"judged/tolerance_{measure}").max() for measure in MEASURES)


def errors(run):
    """The run's error of each tensor, the worst of its replicas; NaN counts as infinite."""
    judged = np.maximum(run.read("judged/relative_rms"), run.read("judged/max_relative"))
    worst = np.where(np.isnan(judged), np.inf, judged).max(axis=0)
    by_name = dict(zip(run.read("tensor"), worst))
    return [by_name[tensor] for tensor in TENSORS]


def worst_case(cases):
    return np.max([error_of[run.name] for run in cases], axis=0) if cases else np.full(len(TENSORS), np.nan)


error_of = {run.name: errors(run) for run in runs}
share_of = {run.name: shares(run) for run in runs}
tolerances = [allowed(run) for run in runs]
tolerance = max(tolerances)
largest = worst_case(runs)
smallest = min(min((e for e in error if e > 0), default=tolerance) for error in error_of.values())
scale = LogNorm(min(smallest, tolerance) / 2, max(np.max(largest[np.isfinite(largest)], initial=0), tolerance) * 3)


# %% [markdown]
# ## One heat map per result
# Each cell is the worst of all cases that share its row and column. A thick frame marks what exceeds the tolerance.

# %%
def heat_maps(row_attribute, column_attribute, row_format="{}"):
    rows, columns = runs.unique(row_attribute), runs.unique(column_attribute)
    cells = [[runs.where(**{row_attribute: row, column_attribute: column}) for column in columns] for row in rows]
    table = np.array([[worst_case(cell) for cell in line] for line in cells])
    counts = sorted({len(cell) for line in cells for cell in line if cell})

    figure, axes = figures.panels(1, len(TENSORS), 0.9 + 0.26 * len(rows), sharey=True)
    for axis, tensor, values in zip(axes[0], TENSORS, np.moveaxis(table, 2, 0)):
        shown = np.clip(values, scale.vmin, scale.vmax)
        image = axis.imshow(shown, norm=scale, cmap="cividis", aspect="auto")
        for (y, x), value in np.ndenumerate(values):
            if np.isnan(value):
                continue
            text = "0" if value == 0 else f"{value:.0e}".replace("e-0", "e-")
            axis.text(x, y, text, ha="center", va="center", fontsize=5,
                      color=figures.ink_on(image.cmap(scale(shown[y, x]))[:3]))
            if any(share_of[run.name][TENSORS.index(tensor)] > 1 for run in cells[y][x]):
                axis.add_patch(plt.Rectangle((x - 0.5, y - 0.5), 1, 1, fill=False, color=figures.VERMILLION, lw=2))
        axis.set_title(tensor)
        axis.set_xticks(range(len(columns)), columns, rotation=90)
        axis.set_yticks(range(len(rows)), [row_format.format(row) for row in rows])
        axis.spines[["left", "bottom"]].set_visible(False)
        axis.tick_params(length=0)
    bar = figure.colorbar(image, ax=axes[0], pad=0.01, aspect=12)
    bar.set_label("largest relative error")
    if min(tolerances) == tolerance:  # otherwise each case and tensor has its own
        bar.ax.axhline(tolerance, color=figures.VERMILLION, lw=2)
        bar.ax.text(-0.3, tolerance, "tolerance", color=figures.VERMILLION, ha="right", va="center", fontsize=6, rotation=90)
    per_cell = " to ".join(str(n) for n in dict.fromkeys((counts[0], counts[-1])))
    figure.suptitle(f"P ranks against one device in {runs[0]['dtype']}: {len(runs)} cases, "
                    f"the worst of {per_cell} in each cell")
    return figure


figures.save(heat_maps("mask", "layout"), arguments.figures, "gradient_equivalence")
figures.save(heat_maps("ranks", "schedule", "P = {}"), arguments.figures, "gradient_equivalence", "schedules")

# %%
worst_share = np.max(list(share_of.values()), axis=1)
print(f"{np.count_nonzero(worst_share <= 1)} of {len(runs)} cases within the tolerance, of which they take up at most "
      f"{worst_share.max():.0%}; largest error of "
      + ", ".join(f"{tensor} {error:.1e}" for tensor, error in zip(TENSORS, largest)))
