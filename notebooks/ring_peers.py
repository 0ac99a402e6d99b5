"""Draws rings called from Python beside other systems of sequence parallelism, all timed in one job on the same tensors:
TFLOP/s per GPU, by tokens per GPU and for packed documents. Marks: rings that a program times without Python, and one GPU."""

# %% [markdown]
# # Rings beside other systems
# From records of `python -m ringlab.peers`. Rates count visible pairs; a bar is the median of all calls of the slowest GPU, and of
# several layouts or kernels of a system the fastest. ring-flash-attention was measured in an earlier session, with about the same
# rates of Ulysses, and packed documents before both, when Ringlab's ranks still agreed over sockets before each pass. Marks are from
# a record of `throughput`, of another day: Ringlab's fastest schedule over copy engines, and as much work on one GPU.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "peers.h5", "peers_2xh100.h5", "peers_2xh100_before.h5", "peers_2xh100_documents.h5",
                              "throughput_2xh100_schedules.h5")
runs = figures.read_runs([path for path in arguments.records if path.name.startswith("peers")], "peers")
others = [path for path in arguments.records if not path.name.startswith("peers")]
timed = figures.read_runs(others, "throughput") if others else figures.Runs()
SYSTEMS = {"ringlab": ("Ringlab", figures.VERMILLION), "ulysses": ("Ulysses", figures.BLUE),
           "ring-flash-attention": ("ring-flash-attention", figures.GREEN),
           "context-parallel": ("PyTorch's context_parallel", figures.GREY)}


# %%
def family(run):
    return next((known for known in SYSTEMS if run["system"].replace("_", "-").startswith(known)), None)


def case(run):
    """Tokens per GPU, and whether documents are packed."""
    return run["tokens"] // run["ranks"], "documents" in run["mask"]


def best(which, place):
    """{system: TFLOP/s} of the fastest run of each system."""
    found = {}
    for run in runs:
        rate = run.attributes.get(f"rate_{which}", np.nan) / 1e12
        if case(run) == place and family(run) and not np.isnan(rate):
            found[family(run)] = max(rate, found.get(family(run), 0))
    return found


def without_python(which):
    """{tokens per GPU: TFLOP/s} of the fastest schedule, and of as much work on one GPU."""
    fastest, alone = {}, {}
    rings = timed.where(kind="ring", transport="copy", mask="causal")
    for run in rings:
        tokens = run["tokens"] // run["ranks"]
        fastest[tokens] = max(run[f"rate_{which}"] / 1e12, fastest.get(tokens, 0))
    # Sequences on one GPU are longer than a rank's part, and ascend with it.
    beside = sorted(timed.where(kind="same work", mask="causal"), key=lambda run: run["tokens"])
    if len(beside) == len(fastest):
        alone = {tokens: run[f"rate_{which}"] / 1e12 for tokens, run in zip(sorted(fastest), beside)}
    return fastest, alone


# %%
MARKS = (("Ringlab without Python", "o"), ("as much work on one GPU", "D"))
places = sorted({case(run) for run in runs if family(run)}, key=lambda place: (place[1], place[0]))
figure, axes = figures.panels(1, 2, 2.4, sharey=True)
for axis, which in zip(axes.flat, ("forward", "both")):
    for at, place in enumerate(places):
        rates = best(which, place)
        for number, (system, (label, color)) in enumerate(SYSTEMS.items()):
            if system in rates:
                axis.bar(at + (number - 1.5) * 0.2, rates[system], 0.19, color=color, label=label)
        print(f"{place[0] // 1024}Ki tokens per GPU{', documents' if place[1] else ''}, {which}: "
              + ", ".join(f"{SYSTEMS[system][0]} {rate:.0f}" for system, rate in sorted(rates.items())))
    for (label, marker), rates in zip(MARKS, without_python(which)):
        shown = [(at, rates[tokens]) for at, (tokens, packed) in enumerate(places) if not packed and tokens in rates]
        if shown:
            axis.plot(*zip(*shown), color=figures.DARK, marker=marker, mfc="none", ls="", label=label)
    axis.set_xticks(range(len(places)), [f"{tokens // 1024}Ki" + ("\ndocuments" if packed else "")
                                         for tokens, packed in places])
    axis.set_title("forward" if which == "forward" else "forward and backward")
    axis.set_xlabel("tokens per GPU")
axes.flat[0].set_ylabel("TFLOP/s per GPU")
handles = dict(zip(*reversed(axes.flat[0].get_legend_handles_labels())))
figures.legend_below(figure, list(handles.values()), columns=3)
figures.start_at_zero(axes)
figures.save(figure, arguments.figures, "ring_peers")
