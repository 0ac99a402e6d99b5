"""Draws our attention kernels beside FlashAttention-4, cuDNN and FlashAttention-2 on one GPU: TFLOP/s against tokens,
back to back and in single passes."""

# %% [markdown]
# # Kernels beside the best there are
# Rates count visible pairs; medians. Ours are from records of `throughput --protocol sustained burst`, the others from
# records of `ringlab.peers --systems alone:fa4 alone:cudnn alone:fa2`, made at the same time on GPUs of the same host.

# %%
import math

import figures

arguments = figures.arguments(__doc__, "throughput_bursts.h5", "throughput_h100_bursts.h5", "peers_h100.h5",
                              "peers_h100_fa2.h5")
ours = figures.read_runs([path for path in arguments.records if not path.name.startswith("peers")], "throughput")
peers = figures.read_runs([path for path in arguments.records if path.name.startswith("peers")], "peers")
PROTOCOLS = {"rate_": "back to back", "burst_rate_": "single passes"}
SERIES = {"ours": ("Ringlab", figures.VERMILLION, "o"), "fa4": ("FlashAttention-4", figures.BLUE, "s"),
          "cudnn": ("cuDNN 9.19", figures.GREEN, "^"), "fa2": ("FlashAttention-2", figures.GREY, "v")}
SHAPE, MASK = "32:8/128/bf16", "causal"


# %%
def line(series, column):
    """Tokens and TFLOP/s of one series, without what was not timed."""
    runs = ours.where(kind="device", shape=SHAPE, mask=MASK) if series == "ours" else peers.where(
        kernels=series, shape=SHAPE, mask=MASK)
    points = sorted((int(run["tokens"]), run.attributes.get(column, math.nan) / 1e12) for run in runs)
    return [point for point in points if not math.isnan(point[1])]


# %%
figure, axes = figures.panels(1, 4, 2.3, sharey=True)
for axis, (which, prefix) in zip(axes.flat, ((p, q) for p in figures.PASSES for q in PROTOCOLS)):
    for series, (label, color, marker) in SERIES.items():
        points = line(series, prefix + which)
        axis.plot([tokens for tokens, _ in points], [rate for _, rate in points], color=color, marker=marker,
                  label=label)
    figures.scale_by_tokens(axis, (1 << 10, 1 << 12, 1 << 14))
    axis.set_title(f"{which}, {PROTOCOLS[prefix]}")
    axis.set_xlabel("tokens")
    axis.grid(axis="y")
axes.flat[0].set_ylabel("TFLOP/s over visible pairs")
handles, labels = axes.flat[0].get_legend_handles_labels()
figures.legend_below(figure, handles, columns=4)
figures.start_at_zero(axes)
figures.save(figure, arguments.figures, "peers")
