"""Draws what stragglers and noise cost: how much longer a pass takes than undisturbed, by tokens per GPU and schedule,
one panel for each record of predict that was disturbed in another way."""

# %% [markdown]
# # Stragglers and jitter
# A line is the median over the repeats of a record, the band goes from the 5th percentile to the 95th, and the dotted line
# is the 99th. Time is that of both passes, over the same undisturbed.

# %%
import numpy as np
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "jitter.h5", "jitter_slow_gpu.h5", "jitter_slow_link.h5", "jitter_noise.h5")
runs = figures.read_runs(arguments.records, "predict")
STYLES = figures.OTHER_STYLES + tuple(figures.LAYOUT_STYLES.values())


# %%
def disturbance(run):
    """What disturbs the record of a run, in words."""
    told = figures.configuration(run)
    words = []
    for what, name, usual in (("gpu", "GPU", 1.2), ("link", "link", 2)):
        count, _, factor = told.get(f"slow-{what}s", "0").partition(":")
        factor = float(factor or told.get(f"slow-{what}-factor", usual))  # an option of its own in earlier records
        if int(count):
            words.append(f"{count} {name}{'s' * (int(count) > 1)} {factor:g} times as slow")
    for what in ("compute", "transfer"):
        if float(told[f"{what}-noise"]):
            words.append(f"{100 * float(told[f'{what}-noise']):g} % noise of {what}")
    if float(told["start-skew"]):
        words.append(f"starts up to {float(told['start-skew']):g} µs late")
    return ", ".join(words)


def slowdowns(run, machine):
    """Of each repeat: both passes over both passes undisturbed."""
    disturbed, alone = (sum(run.read(f"predicted/{machine}/{which}/{what}") for which in figures.PASSES)
                        for what in ("disturbed_makespan", "makespan"))
    return disturbed / alone


def series(run):
    """What a line is: the parts of a run that differ between the lines of a figure."""
    return tuple(run[name] for name in ("layout", "schedule", "policy"))


def label_of(parts, all_parts):
    return " ".join(part for part, *others in zip(parts, *all_parts) if len(set(others)) > 1) or parts[1]


# %%
def draw(cases, machine):
    records = list(dict.fromkeys(run.record for run in cases))
    lines = list(dict.fromkeys(series(run) for run in cases))
    figure, (axes,) = figures.panels(1, len(records), 2.4, sharey=True)
    for axis, record in zip(axes, records):
        found = [run for run in cases if run.record == record]
        axis.set_title(disturbance(found[0]).replace(", ", ",\n"))
        for parts, style in zip(lines, STYLES):
            line = sorted((run for run in found if series(run) == parts), key=lambda run: run["tokens"])
            if not line:
                continue
            tokens = [run.tokens_per_rank for run in line]
            low, middle, high, highest = np.transpose(
                [np.percentile(slowdowns(run, machine), (5, 50, 95, 99)) for run in line])
            axis.fill_between(tokens, low, high, color=style.color, alpha=0.18, lw=0)
            axis.plot(tokens, middle, color=style.color, marker=style.marker, mfc="none")
            axis.plot(tokens, highest, color=style.color, ls=(0, (1, 1.5)), lw=0.8)
            print(f"{machine}, {disturbance(found[0])}, {' '.join(filter(None, parts))}: " + ", ".join(
                f"{count} tokens {m:.3f} (95th {h:.3f})" for count, m, h in zip(tokens, middle, high)))
        axis.axhline(1, color=figures.GREY, lw=0.6)
        axis.grid(axis="y")
        figures.scale_by_tokens(axis, {run.tokens_per_rank for run in found})
        axis.set_xlabel("tokens per GPU")
    axes[0].set_ylabel("time over undisturbed")
    run = cases[0]
    figure.suptitle(f"Predicted on {machine}: both passes, {run['ranks']} GPUs, {run['mask']} mask, "
                    f"{run['query_heads']}:{run['kv_heads']} heads of {run['head_dim']}")
    figures.legend_below(figure, [
        *(Line2D([], [], color=style.color, marker=style.marker, mfc="none", label=label_of(parts, lines))
          for parts, style in zip(lines, STYLES)),
        Line2D([], [], color=figures.GREY, lw=4, alpha=0.3, label="5th to 95th percentile"),
        Line2D([], [], color=figures.GREY, ls=(0, (1, 1.5)), lw=0.8, label="99th percentile")], columns=6)
    return figure


if any(not disturbance(run) for run in runs):
    figures.stop("a record of predict in which nothing is disturbed has nothing to draw; give --slow-gpus, --compute-noise "
                 "and their like")
for label, cases in runs.groups("mask", "ranks"):
    for machine in cases[0].machines():
        figures.save(draw(cases, machine), arguments.figures, "jitter", machine, label)
