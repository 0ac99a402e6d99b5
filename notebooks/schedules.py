"""Draws which schedule is predicted to win where: by tokens per GPU and number of GPUs, one panel for each model shape and
mask."""

# %% [markdown]
# # Schedules
# A cell names the schedule whose forward and backward pass together take the least time, and how many times as fast as
# the plain ring it is. Where several come within 2 % of it, the name is the first of them in the record, and is followed
# by a +. GPUs beyond one host talk over its network.

# %%
from matplotlib.patches import Patch, Rectangle

import figures

arguments = figures.arguments(__doc__, "schedules.h5", "schedules_llama-3.1-8b.h5", "schedules_deepseek-v3.h5")
runs = figures.read_runs(arguments.records, "predict")
CLOSE = 1.02


# %%
def seconds(run, machine):
    return sum(float(run.read(f"predicted/{machine}/{which}/makespan")) for which in figures.PASSES)


def shape(run):
    dims = f"{run['head_dim']}" if run["head_dim"] == run["value_dim"] else f"{run['head_dim']}/{run['value_dim']}"
    return f"{run['query_heads']}:{run['kv_heads']} heads of {dims}"


def family(schedule):
    return schedule.split(":")[0]


# %%
def draw(machine):
    panels = [(label, mask) for label in dict.fromkeys(map(shape, runs)) for mask in runs.unique("mask")]
    columns = len(runs.unique("mask"))
    figure, axes = figures.panels(-(-len(panels) // columns), columns, 2.0)
    drawn = set()
    for axis, (label, mask) in zip(axes.flat, panels):
        cases = figures.Runs(run for run in runs if shape(run) == label and run["mask"] == mask)
        ranks, tokens = sorted(cases.unique("ranks")), sorted({run.tokens_per_rank for run in cases})
        for y, count in enumerate(ranks):
            for x, length in enumerate(tokens):
                times = {run["schedule"]: seconds(run, machine) for run in cases
                         if run["ranks"] == count and run.tokens_per_rank == length}
                if not times:
                    continue
                best = min(times.values())
                close = [name for name, time in times.items() if time <= CLOSE * best]
                color = figures.schedule_style(close[0]).color
                drawn.add(family(close[0]))
                axis.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=color, lw=0))
                gain = f"\n{times['ring'] / times[close[0]]:.2f}" if "ring" in times else ""
                axis.text(x, y, close[0] + ("+" if len(close) > 1 else "") + gain, ha="center", va="center", fontsize=5,
                          color=figures.ink_on(color))
                print(f"{machine}, {label}, {mask}, {count} GPUs, {length} tokens per GPU: " +
                      ", ".join(f"{name} {best / time:.2f}" for name, time in sorted(times.items(), key=lambda t: t[1])))
        axis.set_title(f"{label}, {mask}")
        axis.set_xticks(range(len(tokens)), map(figures.tokens_text, tokens))
        axis.set_yticks(range(len(ranks)), ranks)
        axis.set_xlim(-0.5, len(tokens) - 0.5)
        axis.set_ylim(-0.5, len(ranks) - 0.5)
    for axis in axes[-1]:
        axis.set_xlabel("tokens per GPU")
    for axis in axes[:, 0]:
        axis.set_ylabel("GPUs")
    for axis in axes.flat[len(panels):]:
        axis.set_visible(False)
    figure.suptitle(f"Predicted on {machine}: the fastest schedule, and its speed over the ring's")
    figures.legend_below(figure, [Patch(color=style.color, label=name) for name, style in figures.SCHEDULE_STYLES.items()
                                  if name in drawn],
                         columns=8)
    return figure


for machine in runs[0].machines():
    figures.save(draw(machine), arguments.figures, "schedules", machine)
