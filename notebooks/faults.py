"""Draws which gate sees which mistake and by how much."""

# %% [markdown]
# # Mistakes made on purpose
# Mistakes that other systems of ring attention shipped with, each made on purpose and judged as right runs are. Left: error
# over what the roundings of a right run leave; beyond 1 the gate complains. Open marks are the right runs. Right: what a
# gate of cosine similarity would see of the same results; a gradient twice too large, or a P-th of what it should be, has a
# cosine of 1; the line is a gate at 0.99.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "faults.h5", "faults_cpu_fp64.h5", "faults_cpu_fp32.h5", "faults_cpu_bf16.h5")
runs = figures.read_runs(arguments.records, "faults")
MARKERS = "s", "o", "^", "D"
COSINE_GATE = 0.99
SMALLEST = 1e-16  # 1 - cosine that fp64 can tell from 0


# %%
def title(run):
    return f"{run['mistake']}  {run['name']}"


def arithmetic(run):
    settings = figures.configuration(run)
    return f"{settings['arithmetic']}, {settings['backend']}"


def cosines_of(run):
    """Cosines of what was judged by its values; none where a gate of its own has judged, or nothing is a number."""
    if run["gate"] in ("traffic", "time-out") or "judged/cosine" not in run:
        return np.array([])
    cosines = run.read("judged/cosine")
    return cosines[np.isfinite(cosines)]


def draw_factors(axis, cases, style, label, edge):
    """Of each mistake the gate's factor, filled, and the right run's, open; what is infinite lies at the edge."""
    rows = np.array([order.index(title(run)) for run in cases])
    factors = np.array([run["factor"] for run in cases])
    finite = np.where(np.isposinf(factors), edge, factors)
    axis.plot(finite, rows, style.marker, color=style.color, label=label, ls="none")
    axis.plot([run["right_factor"] for run in cases], rows, style.marker, color=style.color, mfc="none", ls="none")
    for row, run, factor in zip(rows, cases, factors):
        cosines = cosines_of(run)
        least = f", least cosine {cosines.min():.4f}" if len(cosines) else ""
        print(f"{label}: {title(run)}: {run['gate']}, factor {factor:.2g} (right run {run['right_factor']:.2f}){least}")


def draw_cosines(axis, cases, style):
    for run in cases:
        cosines = cosines_of(run)
        if len(cosines):
            distance = max(1 - cosines.min(), SMALLEST)
            axis.plot(distance, order.index(title(run)), style.marker, color=style.color)


# %%
for label, mistakes in runs.groups("ranks"):
    order = list(dict.fromkeys(title(run) for run in mistakes))
    finite = [run["factor"] for run in mistakes if np.isfinite(run["factor"])]
    edge = 10 * max(finite)
    figure, axes = figures.panels(1, 2, 2.8, width_ratios=(2, 1))
    by_record = dict.fromkeys(arithmetic(run) for run in mistakes)
    for kind, color, marker in zip(by_record, (figures.BLUE, figures.ORANGE, figures.GREEN), MARKERS):
        style = figures.Style(color, marker)
        cases = figures.Runs(run for run in mistakes if arithmetic(run) == kind)
        draw_factors(axes[0, 0], cases, style, kind, edge)
        draw_cosines(axes[0, 1], cases, style)
    factors, cosines = axes[0, :2]
    factors.axvline(1, color="black", lw=0.8)
    factors.axvline(edge, color=figures.GREY, lw=0.6, ls=":")
    factors.text(edge, -0.7, "infinite", ha="center", va="bottom", color=figures.GREY)
    factors.set(xscale="log", xlabel="error over what passes", yticks=range(len(order)), yticklabels=order)
    cosines.axvline(1 - COSINE_GATE, color="black", lw=0.8)
    cosines.set(xscale="log", xlabel="1 - cosine", yticks=range(len(order)), yticklabels=[])
    for axis in (factors, cosines):
        axis.invert_yaxis()
        axis.grid(axis="y")
    cosines.set_ylim(factors.get_ylim())
    figures.legend_below(figure, factors.get_legend_handles_labels()[0], columns=4)
    figures.save(figure, arguments.figures, "faults", label)
