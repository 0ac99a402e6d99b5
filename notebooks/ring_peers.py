"""Draws rings called from Python beside other systems of sequence parallelism, all timed in one job on the same tensors:
TFLOP/s per GPU, by tokens per GPU."""

# %% [markdown]
# # Rings beside other systems
# From a record of `python -m ringlab.peers`. Rates count visible pairs; a bar is the median of all calls of the slowest GPU, and of
# several schedules or kernels of a system the fastest. Plain: single passes. Hatched: back to back, which is left out where rounds
# differ by more than 10 %.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "peers.h5", "peers_2xh200.h5")
runs = figures.read_runs(arguments.records, "peers")
SYSTEMS = {"ringlab": ("Ringlab", figures.VERMILLION), "ulysses": ("Ulysses", figures.BLUE),
           "ring-flash-attention": ("ring-flash-attention", figures.GREEN),
           "context-parallel": ("PyTorch's context_parallel", figures.GREY)}
PROTOCOLS = {"burst_rate_": ("single passes", ""), "rate_": ("back to back", "///")}
LARGEST_SPREAD = 0.1


# %%
def family(run):
    return next((known for known in SYSTEMS if run["system"].replace("_", "-").startswith(known)), None)


def best(column, tokens):
    """{system: TFLOP/s} of the fastest run of each system whose rounds agree."""
    found = {}
    for run in runs:
        rate, spread = (run.attributes.get(f"{column}{suffix}", np.nan) for suffix in ("", "_spread"))
        if run.tokens_per_rank == tokens and family(run) and spread <= LARGEST_SPREAD:
            found[family(run)] = max(rate / 1e12, found.get(family(run), 0))
    return found


# %%
lengths = sorted({run.tokens_per_rank for run in runs if family(run)})
figure, axes = figures.panels(1, 2, 2.4, sharey=True)
for axis, which in zip(axes.flat, ("forward", "both")):
    for at, tokens in enumerate(lengths):
        for shift, (prefix, (protocol, hatch)) in enumerate(PROTOCOLS.items()):
            rates = best(prefix + which, tokens)
            for number, (system, (label, color)) in enumerate(SYSTEMS.items()):
                if system in rates:
                    axis.bar(at + (number - 1.5) * 0.24 + shift * 0.11, rates[system], 0.1, color=color, hatch=hatch,
                             edgecolor="white", lw=0, label=f"{label}, {protocol}")
            print(f"{figures.tokens_text(tokens)} tokens per GPU, {which}, {protocol}: "
                  + ", ".join(f"{SYSTEMS[system][0]} {rate:.0f}" for system, rate in sorted(rates.items())))
    axis.set_xticks(range(len(lengths)), map(figures.tokens_text, lengths))
    axis.set_title("forward" if which == "forward" else "forward and backward")
    axis.set_xlabel("tokens per GPU")
axes.flat[0].set_ylabel("TFLOP/s per GPU")
handles = {label: handle for axis in axes.flat for handle, label in zip(*axis.get_legend_handles_labels())}
figures.legend_below(figure, list(handles.values()), columns=3)
figures.start_at_zero(axes)
figures.save(figure, arguments.figures, "ring_peers")
