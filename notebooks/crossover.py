"""Draws which layout pays from which length on: predicted speed per GPU and what links cost against tokens per
GPU, by layout and machine, with the two guesses that need no simulator."""

# %% [markdown]
# # Crossover
# A short sequence leaves a ring waiting for its blocks, a long one hides them behind compute. Thin lines are guesses
# from the slowest rank's steps alone: dashed if each step took the longer of compute and transfer, dotted if it took
# both.

# %%
import numpy as np
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "predict.h5", "predict.h5")
runs = figures.read_runs(arguments.records, "predict")


# %%
def speed(run, group, time):
    """TFLOP/s per GPU, of visible pairs, if the pass took this time."""
    return run.read(f"{group}/flop") / run.read(f"{group}/{time}") / run["ranks"] / 1e12


def share_of_links(run, group):
    """Share of the pass that free links would save: time_by_cause of `links`, see the record."""
    causes = list(run.table.labels["cause"])
    return run.read(f"{group}/time_by_cause")[causes.index("links")] / run.read(f"{group}/makespan")


# %% [markdown]
# ## The crossover on paper
# A step computes in `pairs * flop_per_pair / F` and transfers in `tokens * bytes_per_token / BW`. Equal at
# `tokens = bytes_per_token / BW * F / (flop_per_pair * visible part of the pairs)`; for a causal mask in 16 bits that is
# the known T = 2 (Hkv/Hq) F / BW. F and BW are those of the longest sequence in the record, whose spans it holds up to
# 64 ranks.

# %%
def crossover_on_paper(cases, machine):
    """Tokens per GPU from which forward hops hide behind balanced compute; None if the record lacks the figures."""
    group = f"predicted/{machine}/forward"
    run = max(cases, key=lambda run: run.tokens_per_rank)
    if f"{group}/spans" not in run:
        return None
    incoming = np.isin(run.read(f"{group}/spans/kind"), ("receive", "fetch"))
    seconds = (run.read(f"{group}/spans/end") - run.read(f"{group}/spans/begin"))[incoming]
    if not len(seconds) or not run.read(f"{group}/compute_time").any():
        return None
    tokens, flop = run.tokens_per_rank, run.read(f"{group}/flop")
    flop_per_second = flop / run.read(f"{group}/compute_time").sum()
    flop_per_step = flop / run["ranks"] ** 2
    # A step of n tokens computes for (n / tokens)^2 * flop_per_step / flop_per_second and transfers for
    # (n / tokens) * seconds. A rank's fastest transfer is one that nothing disturbed; the rank with the slowest link
    # holds up the ring.
    receiver = run.read(f"{group}/spans/rank")[incoming]
    slowest = max(seconds[receiver == rank].min() for rank in np.unique(receiver))
    return tokens * slowest * flop_per_second / flop_per_step


# %%
def draw(cases, machines):
    layouts = figures.layout_styles(cases)
    figure, axes = figures.panels(4, len(machines), 1.75, sharex=True, sharey="row")
    for column, machine in zip(axes.T, machines):
        column[0].set_title(machine)
        paper = crossover_on_paper(cases, machine)
        for which, fast, links in zip(figures.PASSES, column[0::2], column[1::2]):
            group = f"predicted/{machine}/{which}"
            for layout, style in layouts.items():
                line = sorted(cases.where(layout=layout), key=lambda run: run.tokens_per_rank)
                tokens = [run.tokens_per_rank for run in line]
                for time, dash in (("naive_overlapped", (0, (4, 2))), ("naive_serial", (0, (1, 1.5)))):
                    fast.plot(tokens, [speed(run, group, time) for run in line], ls=dash, lw=0.6, color=style.color)
                fast.plot(tokens, [speed(run, group, "makespan") for run in line], marker=style.marker,
                          mfc="none", color=style.color)
                links.plot(tokens, [100 * share_of_links(run, group) for run in line], marker=style.marker,
                             mfc="none", color=style.color)
            if which == "forward" and paper:
                for axis in (fast, links):
                    axis.axvline(paper, color=figures.DARK, lw=0.8, ls=(0, (6, 2)))
                links.text(paper, 1, f" {paper:.0f} tokens", transform=links.get_xaxis_transform(), fontsize=6.5,
                             va="top")
        for axis in column:
            axis.grid(axis="y")
            figures.scale_by_tokens(axis, {run.tokens_per_rank for run in cases})
        column[-1].set_xlabel("tokens per GPU")
    figures.start_at_zero(axes)
    for index, which in enumerate(figures.PASSES):
        axes[2 * index, 0].set_ylabel(f"{which}\nTFLOP/s per GPU")
        axes[2 * index + 1, 0].set_ylabel(f"{which}\nsaved by free links, %")
    run = cases[0]
    figure.suptitle(f"Predicted: {run['schedule']} over {run['ranks']} GPUs, {run['mask']} mask, "
                    f"{run['query_heads']}:{run['kv_heads']} heads of {run['head_dim']}")
    figures.legend_below(figure, [
        *(Line2D([], [], color=s.color, marker=s.marker, mfc="none", label=layout) for layout, s in layouts.items()),
        Line2D([], [], color=figures.GREY, ls=(0, (4, 2)), lw=0.6, label="guess: max(compute, transfer)"),
        Line2D([], [], color=figures.GREY, ls=(0, (1, 1.5)), lw=0.6, label="guess: compute + transfer"),
        Line2D([], [], color=figures.DARK, ls=(0, (6, 2)), lw=0.8, label="hops hide from here, on paper")],
        columns=3)
    return figure


for label, cases in runs.groups("mask", "ranks", "schedule"):
    machines = cases[0].machines()
    figures.save(draw(cases, machines), arguments.figures, "crossover", label)
    for machine in machines:
        paper = crossover_on_paper(cases, machine)
        on_paper = f"hops hide from {paper:.0f} tokens per GPU on, on paper" if paper else "no figures for a crossover"
        for run in sorted(cases, key=lambda run: run.tokens_per_rank):
            print(f"{machine}, {run.name}: " + ", ".join(
                f"{which} {speed(run, f'predicted/{machine}/{which}', 'makespan'):.0f} TFLOP/s per GPU, links cost "
                f"{100 * share_of_links(run, f'predicted/{machine}/{which}'):.1f} %" for which in figures.PASSES))
        print(f"{machine}, {run['mask']}, P = {run['ranks']}: {on_paper}")
