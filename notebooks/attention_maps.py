"""Draws who attends to what: which rank computes which part of the attention matrix, and how many visible pairs each
rank has in each step of the ring."""

# %% [markdown]
# # Who attends to what
# A layout decides which rank owns which tokens, a mask which keys a query sees. Together they decide each rank's work.

# %%
import numpy as np
from matplotlib.colors import ListedColormap
from matplotlib.patches import Patch

import figures

arguments = figures.arguments(__doc__, "compare_layouts.h5", "compare_layouts_cpu.h5")
runs = figures.read_runs(arguments.records, "compare_layouts")
MOST_PIXELS = 256  # a side of a map
ZOOMED_TOKENS = 32


# %%
def sample(tokens):
    """One token of each pixel. Drawn at random within it: at even distances stripes would alias."""
    pixels = min(tokens, MOST_PIXELS)
    edges = np.arange(pixels) * tokens / pixels
    return (edges + np.random.default_rng(1).random(pixels) * tokens / pixels).astype(int)


def visible(run, queries, keys):
    """True where the query sees the key; both are global positions."""
    begin, end, sink = (run.read(f"maps/row_{name}")[queries, None] for name in ("begin", "end", "sink"))
    sees = (begin <= keys) & (keys < end) | (keys < sink)
    if "maps/row_earlier_begin" in run:  # joined masks that leave a row more than an interval and first keys
        for more in zip(*(run.read(f"maps/row_earlier_{name}")[queries].T for name in ("begin", "end"))):
            sees |= (more[0][:, None] <= keys) & (keys < more[1][:, None])
    return sees & (run.read("maps/key_valid")[keys] > 0)


def draw_map(axis, run, tokens):
    """Visible pairs of these tokens, in the colour of the rank that computes them; along the edges, who owns what."""
    ranks, owner = run["ranks"], run.read("maps/owner")[tokens]
    options = dict(cmap=ListedColormap(["white", *figures.rank_colors(ranks)]), vmin=0, vmax=ranks,
                   interpolation="nearest")
    axis.imshow(np.where(visible(run, tokens, tokens), owner[:, None] + 1, 0), extent=(0, 1, 1, 0), **options)
    axis.imshow(owner[:, None] + 1, extent=(-0.07, -0.02, 1, 0), **options)
    axis.imshow(owner[None, :] + 1, extent=(0, 1, 1.07, 1.02), **options)
    axis.set(xlim=(-0.08, 1), ylim=(1.08, 0), xticks=[], yticks=[])


def is_finer_than_a_pixel(run):
    owner = run.read("maps/owner")
    return np.count_nonzero(np.diff(owner)) > MOST_PIXELS / 2


# %% [markdown]
# ## Maps
# Rows are queries, columns keys, both in the order of the sequence. The colour is the rank that owns the query and thus
# computes the pair; the strips show the owners of queries (left) and keys (below). Layouts finer than a pixel are
# sampled, with the first tokens enlarged.

# %%
def maps(cases, masks, layouts):
    figure, axes = figures.panels(len(layouts), len(masks), figures.PAGE_WIDTH / max(len(masks), 3))
    for line, layout in zip(axes, layouts):
        for axis, mask in zip(line, masks):
            axis.set(xticks=[], yticks=[])
            axis.spines[:].set_visible(False)
            for run in cases.where(mask=mask, layout=layout)[:1]:
                draw_map(axis, run, sample(run["padded_tokens"]))
                if is_finer_than_a_pixel(run):
                    zoom = axis.inset_axes((0.6, 0.6, 0.4, 0.4))
                    draw_map(zoom, run, np.arange(ZOOMED_TOKENS))
                    zoom.spines[:].set_visible(True)
                    zoom.set_xlabel(f"first {ZOOMED_TOKENS} tokens", fontsize=5.5, labelpad=2,
                                    bbox=dict(facecolor="white", edgecolor="none", pad=0.8))
        line[0].set_ylabel(f"{layout}\nqueries")
    for axis, mask in zip(axes[0], masks):
        axis.set_title(mask)
    for axis in axes[-1]:
        axis.set_xlabel("keys")
    run = cases[0]
    figure.suptitle(f"Who computes which query-key pairs: {run['tokens']} tokens over {run['ranks']} ranks")
    shown = range(run["ranks"]) if run["ranks"] <= 16 else np.linspace(0, run["ranks"] - 1, 9).astype(int)
    colors = figures.rank_colors(run["ranks"])
    figures.legend_below(figure, [Patch(color=colors[rank], label=f"rank {rank}") for rank in shown], columns=8)
    return figure


# %% [markdown]
# ## Work of each rank and step
# From the spans of the record: what a rank attends to in each step of the schedule. A block in which every query sees
# every key is 100. Ranks in a step wait for the slowest: a row of equal numbers is what one wants.

# %%
def by_step(run):
    """Visible pairs of a head as (step, rank), in percent of a block that is seen wholly; None without spans."""
    sources = ["measured", *(f"predicted/{machine}" for machine in run.machines())]
    path = next((f"{source}/forward/spans" for source in sources if f"{source}/forward/spans" in run), None)
    if path is None:
        return None
    attends = run.read(f"{path}/kind") == "attend"
    step, rank, pairs = (run.read(f"{path}/{name}")[attends] for name in ("step", "rank", "pairs"))
    sums = np.zeros((max(step, default=0) + 1, run["ranks"]))
    np.add.at(sums, (step, rank), pairs)
    return 100 * sums / (run["padded_tokens"] / run["ranks"]) ** 2


def steps(cases, masks, layouts):
    figure, axes = figures.panels(len(masks), len(layouts), 6.6 / max(len(layouts), 3), sharex=True, sharey=True)
    for line, mask in zip(axes, masks):
        for axis, layout in zip(line, layouts):
            for run in cases.where(mask=mask, layout=layout)[:1]:
                pairs = by_step(run)
                if pairs is None:
                    continue
                image = axis.imshow(pairs, cmap="cividis", vmin=0, vmax=100, aspect="auto")
                if pairs.size <= 256:
                    for (step, rank), value in np.ndenumerate(pairs):
                        axis.text(rank, step, f"{value:.0f}", ha="center", va="center", fontsize=5.5,
                                  color=figures.ink_on(image.cmap(value / 100)[:3]))
                lost = 1 - pairs.mean() / pairs.max(axis=1).mean()
                axis.set_title(f"{mask}, {layout}\nlost in lockstep: {100 * lost:.1f} %", fontsize=7)
                axis.spines[:].set_visible(False)
                figures.count_ticks(axis.xaxis, run["ranks"])
                figures.count_ticks(axis.yaxis, len(pairs))
    for axis in axes[-1]:
        axis.set_xlabel("rank")
    for axis in axes[:, 0]:
        axis.set_ylabel("step")
    figure.colorbar(image, ax=axes, aspect=60, pad=0.01, label="visible pairs, % of a block that is seen wholly")
    figure.suptitle(f"Visible pairs of each rank in each step, {cases[0]['ranks']} ranks, "
                    f"{cases[0]['tokens']} tokens")
    return figure


# %%
for label, cases in runs.groups("ranks", "tokens"):
    masks, layouts = cases.unique("mask"), cases.unique("layout")
    if all("maps/owner" in run for run in cases):
        figures.save(maps(cases, masks, layouts), arguments.figures, "attention_maps", label)
    if any(by_step(run) is not None for run in cases):
        figures.save(steps(cases, masks, layouts), arguments.figures, "attention_steps", label)
    for mask in masks:
        for layout in layouts:
            for run in cases.where(mask=mask, layout=layout)[:1]:
                pairs = run.read("work/pairs_of_rank")
                print(f"{run.name}: {pairs.sum():.0f} visible pairs a head, largest rank / mean "
                      f"{pairs.max() / pairs.mean():.3f}")
