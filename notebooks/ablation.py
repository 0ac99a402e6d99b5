"""Draws what each term of the cost model is worth: by how much the mean error of predicted passes grows when the term
costs nothing, by transport and tokens per rank."""

# %% [markdown]
# # What the terms of the cost model buy
# All measured rings that are scored were predicted again without each term (`validate --measured all --without each`).
# The other terms were not fitted again, so a value is an upper bound. Below 0: predictions are better without the term.

# %%
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "ablation.h5", "ablation.h5")
runs = figures.read_runs(arguments.records, "validate")
LENGTHS = {"below 2Ki": (figures.SKY, "o"), "2Ki to 8Ki": (figures.BLUE, "s"), "from 8Ki": (figures.DARK, "^")}


# %%
def error(term, transport, length):
    """Mean relative error in %, and its 95th percentile."""
    run, = runs.where(without=term, transport=transport, length=length)
    return 100 * run["error_mean"], 100 * run["error_p95"]


terms = [term for term in dict.fromkeys(run["without"] for run in runs) if term != "none"]
sets = list(dict.fromkeys((run["transport"], run["length"]) for run in runs))
transports = list(dict.fromkeys(transport for transport, _ in sets))


def loss(term, transport, length):
    return error(term, transport, length)[0] - error("none", transport, length)[0]


worth = {term: max(loss(term, *each) for each in sets) for term in terms}
terms.sort(key=worth.get)

# %%
gpus = [transport for transport in transports if transport in ("copy", "nccl")]  # the others have one length
figure, axes = figures.panels(1, len(gpus), 4.2, sharex=True, sharey=True)
for axis, transport in zip(axes.flat, gpus):
    for length, (color, marker) in LENGTHS.items():
        axis.plot([loss(term, transport, length) for term in terms], range(len(terms)), color=color, marker=marker,
                  mfc="none", ls="")
    means = ", ".join(f"{length} {error('none', transport, length)[0]:.1f} %" for length in LENGTHS)
    axis.axvline(0, color=figures.GREY, lw=0.6)
    axis.set_title(f"{transport}: mean error of the whole model\n{means}")
    axis.set_xlabel("percentage points added to the mean error")
    axis.grid(axis="x")
axes.flat[0].set_yticks(range(len(terms)), terms)
axes.flat[0].set_ylabel("without")
figures.legend_below(figure, [
    Line2D([], [], color=color, marker=marker, mfc="none", ls="", label=f"{length} tokens per rank")
    for length, (color, marker) in LENGTHS.items()], columns=3)
figures.save(figure, arguments.figures, "ablation")

# %%
for term in ["none", *reversed(terms)]:
    print(f"without {term}: " + ", ".join(
        f"{transport} {length} {error(term, transport, length)[0]:.2f} / {error(term, transport, length)[1]:.1f} %"
        for transport, length in sets))
