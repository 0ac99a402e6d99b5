"""Draws what it takes to let the latent of multi-head latent attention travel and expand it on arrival, against K and V
that are expanded at home and travel: traffic, memory and time by tokens, from records of predict or compare_layouts
--latent RANK+SHARED --schedules ring expanded:ring."""

# %% [markdown]
# # A latent that travels
# Of a rank and both passes: bytes that it sends or fetches, the most memory that it holds, and the time of the slowest
# rank, of which dotted what expands and compresses. Full lines and filled marks: the latent travels. Dashed lines and
# hollow marks: K and V of all heads do. Lines are predicted, on one machine a panel; marks are measured, where the record
# holds measurements.

# %%
import numpy as np
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "latent.h5", "latent_predicted_cluster.h5", "latent_predicted.h5",
                              "latent_2cpus.h5")
AT_HOME = "expanded:"


# %%
def both(run, column):
    return sum(run[column.format(which)] for which in figures.PASSES)


def making_seconds(run, source):
    """Of the rank that does most of it, both passes: what makes K and V of a latent, and its gradient of theirs."""
    total = 0
    for which in figures.PASSES:
        path = f"{source}/{which}/spans"
        if f"{path}/kind" not in run:
            return None
        kind, rank, busy = (run.read(f"{path}/{column}") for column in ("kind", "rank", "busy"))
        makes = np.isin(kind, ("expand", "compress"))
        total += np.bincount(rank[makes], busy[makes], minlength=1).max()
    return total


def draw(axis, cases, value, marks=False, style=None):
    """A line, or marks, for each schedule: value(run), where it is something, by tokens of a rank."""
    for schedule in cases.unique("schedule"):
        travels, name = not schedule.startswith(AT_HOME), schedule.removeprefix(AT_HOME)
        points = sorted((run.tokens_per_rank, value(run)) for run in cases.where(schedule=schedule))
        points = [point for point in points if point[1] is not None]
        if not points or (style and not travels):
            continue
        color, marker = figures.schedule_style(name)
        if marks:
            axis.plot(*zip(*points), marker, color=color, mfc=color if travels else "none")
        else:
            axis.plot(*zip(*points), color=color, ls=style or ("-" if travels else (0, (4, 2))))


def finish(axis, title, unit):
    figures.scale_both(axis, "tokens per rank")
    axis.set_title(title)
    axis.set_ylabel(unit)


# %%
for path in arguments.records:
    for label, cases in figures.read_runs([path], "predict", "compare_layouts").groups("layout", "mask", "ranks", "latent"):
        run = cases[0]
        machines = run.machines()
        figure, axes = figures.panels(1, 2 + len(machines), 2.5)
        draw(axes[0, 0], cases, lambda run: both(run, "bytes_travelling_{}") / 1e6)
        finish(axes[0, 0], "traffic", "MB")
        draw(axes[0, 1], cases, lambda run: run["memory_predicted"] / 2**20)
        if "memory_measured" in run.attributes:
            draw(axes[0, 1], cases, lambda run: run["memory_measured"] / 2**20, marks=True)
        finish(axes[0, 1], "memory", "MiB")
        for axis, machine in zip(axes[0, 2:], machines):
            draw(axis, cases, lambda run: 1e3 * both(run, "seconds_predicted_{}_" + machine))
            draw(axis, cases, lambda run: (seconds := making_seconds(run, f"predicted/{machine}")) and 1e3 * seconds, style=":")
            if "seconds_measured_forward" in run.attributes:
                draw(axis, cases, lambda run: 1e3 * both(run, "seconds_measured_{}"), marks=True)
            finish(axis, machine.replace("_", " "), "ms")
        figure.suptitle(f"P = {run['ranks']}, {run['layout']}, {run['mask']}, {run['query_heads']} heads of "
                        f"{run['head_dim']}/{run['value_dim']}, latent {run['latent']}")
        names = dict.fromkeys(name.removeprefix(AT_HOME) for name in cases.unique("schedule"))
        figures.legend_below(figure, [
            *(Line2D([], [], color=figures.schedule_style(name).color, label=name) for name in names),
            Line2D([], [], color="black", label="latent travels"),
            Line2D([], [], color="black", ls=(0, (4, 2)), label="K, V travel"),
            Line2D([], [], color="black", ls=":", label="of it expanding, compressing")], columns=6)
        figures.save(figure, arguments.figures, path.stem, label)
