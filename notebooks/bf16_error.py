"""Draws what bf16 loses, and what a ring loses on top of it: relative RMS error against fp64 by ring size, accumulation
policy, layout and kind of input."""

# %% [markdown]
# # Error of bf16 attention over P ranks
# Against fp64 on the same bf16 inputs. The *carry* policy keeps the running output in fp32 from block to block;
# *partials* rounds each block's output to bf16 and merges; *running* rounds the merged output as well. The dashed line
# is one device: P = 1 with carry.

# %%
import numpy as np
from matplotlib.lines import Line2D
from matplotlib.ticker import ScalarFormatter

import figures

arguments = figures.arguments(__doc__, "bf16_error.h5", "bf16_error_cpu.h5")
runs = figures.read_runs(arguments.records, "bf16_error")
TENSORS = ("o", "dq", "dk", "dv")
POLICY_STYLES = {"carry": (figures.BLUE, "-"), "partials": (figures.ORANGE, "--"), "running": (figures.DARK, ":")}


# %%
def error(run, tensor):
    """Relative RMS, the mean of the replicas."""
    return run.read("judged/relative_rms")[:, list(run.read("tensor")).index(tensor)].mean()


def one_device(cases, tensor):
    """The error at P = 1 with carry, or None if the record lacks it; layouts do not differ there."""
    single = cases.where(ranks=1, policy="carry")
    return error(single[0], tensor) if single else None


# %% [markdown]
# Layouts share a policy's line, which is their mean; markers tell them apart.

# %%
def draw(cases, relative):
    inputs, ring_sizes, policies = cases.unique("input"), sorted(cases.unique("ranks")), cases.unique("policy")
    layouts = figures.layout_styles(cases)
    figure, axes = figures.panels(len(inputs), len(TENSORS), 1.45, sharex=True, sharey="row" if relative else False)
    spread = 2 ** np.linspace(-0.1, 0.1, len(layouts)) if len(layouts) > 1 else [1]
    for line, kind in zip(axes, inputs):
        for axis, tensor in zip(line, TENSORS):
            here = cases.where(input=kind)
            single = one_device(here, tensor)
            unit = single if relative else 1e-3
            if single:
                axis.axhline(single / unit, color=figures.GREY, ls=(0, (4, 2)), lw=0.9)
            for policy in policies:
                color, style = POLICY_STYLES.get(policy, (figures.PURPLE, "-."))
                means = []
                for ranks in ring_sizes:
                    values = []
                    for shift, layout in zip(spread, layouts):
                        for run in here.where(policy=policy, ranks=ranks, layout=layout):
                            values.append(error(run, tensor) / unit)
                            axis.plot(ranks * shift, values[-1], layouts[layout].marker, color=color, ms=3,
                                      mfc="white", mew=0.7, zorder=3)
                    means.append(np.mean(values) if values else np.nan)
                axis.plot(ring_sizes, means, ls=style, color=color)
            axis.grid(axis="y")
            axis.margins(y=0.12)
            axis.set_xscale("log", base=2)
            axis.set_xticks(ring_sizes)
            axis.xaxis.set_major_formatter(ScalarFormatter())
            axis.minorticks_off()
        line[0].set_ylabel(f"{kind} input")
    for axis, tensor in zip(axes[0], TENSORS):
        axis.set_title(tensor)
    figures.start_at_zero(axes)
    figure.supxlabel("ranks P", fontsize=7.5)
    figure.supylabel("error / error of one device" if relative else r"relative RMS error, $10^{-3}$", fontsize=7.5)
    figure.suptitle(f"{cases[0]['dtype']} attention over P ranks against fp64, {cases[0]['mask']} mask, "
                    f"{cases[0]['tokens']} tokens")
    figures.legend_below(figure, [
        *(Line2D([], [], color=c, ls=s, label=p) for p in policies
          for c, s in [POLICY_STYLES.get(p, (figures.PURPLE, "-."))]),
        Line2D([], [], color=figures.GREY, ls=(0, (4, 2)), lw=0.9, label="one device"),
        *(Line2D([], [], color=figures.DARK, ls="", marker=s.marker, mfc="white", label=layout)
          for layout, s in layouts.items())], columns=len(policies) + 1 + len(layouts))
    return figure


for label, cases in runs.groups("mask", "tokens", "schedule"):
    figures.save(draw(cases, relative=False), arguments.figures, "bf16_error", label)
    if cases.where(ranks=1, policy="carry"):
        figures.save(draw(cases, relative=True), arguments.figures, "bf16_error_ratio", label)

# %%
for label, cases in runs.groups("mask", "tokens", "schedule"):
    largest = max(cases.unique("ranks"))
    for kind in cases.unique("input"):
        for policy in cases.unique("policy"):
            here = cases.where(input=kind, policy=policy, ranks=largest)
            values = [np.mean([error(run, tensor) for run in here]) if here else np.nan for tensor in TENSORS]
            print(f"{label} {kind} input, {policy}, P = {largest}: ".lstrip()
                  + ", ".join(f"{tensor} {value * 1e3:.2f}e-3" for tensor, value in zip(TENSORS, values)))
