"""Draws what attention takes in whole models whose layers differ: time and memory layer by layer, predicted; and of the same
layers scaled down, as they were executed, measured compute beside predicted."""

# %% [markdown]
# # A model's attention, layer by layer
# Models mix local layers, under a window or in chunks, with global ones. Left: the predicted time of all layers so far,
# forward and backward; a step is a layer, the steep ones are global. Middle: what all layers so far leave for their backward
# passes. Right: each kind of layer scaled down and executed: processor time of the busiest rank beside what a calibrated
# machine file predicts of it, filled forward, hollow backward.

# %%
import numpy as np

import figures

arguments = figures.arguments(__doc__, "model_stack.h5", "model_stack_gemma-2-27b.h5", "model_stack_gemma-3-27b.h5",
                              "model_stack_gpt-oss-120b.h5", "model_stack_llama-4-scout.h5")
COLORS = [figures.BLUE, figures.ORANGE, figures.GREEN, figures.VERMILLION, figures.SKY]
LINES = {"contiguous": "--", "zigzag": "-"}


# %%
def layers_of(whole, runs):
    """The run of each layer's kind, in the layout of the whole model and by ring, from the first layer on."""
    alike = {run["kind"]: run for run in runs if run.record == whole.record and run["layout"] == whole["layout"]
             and run is not whole and run["algorithm"] == "ring"}
    return [alike[kind] for kind in whole.read("stack/kind")]


def steps(axis, values, **style):
    axis.step(np.arange(len(values) + 1), np.concatenate([[0], np.cumsum(values)]), **style)


def draw(runs):
    figure, axes = figures.panels(1, 3, 2.6)
    time, memory, beside = axes[0]
    models = runs.where_stack.unique("kind")
    full, calibrated = (next(m for m in runs[0].machines() if ("calibrated" in m) == small) for small in (False, True))
    for whole in runs.where_stack:
        color, line = COLORS[models.index(whole["kind"]) % len(COLORS)], LINES.get(whole["layout"], ":")
        layers = layers_of(whole, runs)
        seconds = [sum(run[f"seconds_predicted_{which}_{full}"] for which in figures.PASSES) for run in layers]
        steps(time, seconds, color=color, ls=line, label=f"{whole['kind']}, {whole['layout']}")
        if whole["layout"] == runs.where_stack[0]["layout"]:
            steps(memory, [run["kept_bytes"] / 2**30 for run in layers], color=color, ls="-")
        for run in dict.fromkeys(layers):
            for which, fill in zip(figures.PASSES, (color, "none")):
                beside.plot(1e3 * run[f"scaled_compute_predicted_{which}_{calibrated}"],
                            1e3 * run[f"scaled_compute_measured_{which}"], "o" if line == "-" else "s", ms=4, mec=color,
                            mfc=fill)
        shares = {run["kind"]: run["layers"] * sum(run[f"seconds_predicted_{which}_{full}"] for which in figures.PASSES)
                  for run in dict.fromkeys(layers)}
        local = sum(share for kind, share in shares.items() if not kind.endswith("-global"))
        print(f"{whole['kind']}, {whole['layout']}: {1e3 * sum(seconds):.0f} ms predicted on {full}, {100 * local / sum(seconds):.0f} % "
              f"of it in local layers; {whole['stack_memory'] / 2**30:.1f} GiB a rank; scaled down "
              + ", ".join(f"{which} measured over predicted "
                          f"{whole[f'scaled_stack_compute_measured_{which}'] / whole[f'scaled_stack_compute_predicted_{which}_{calibrated}']:.2f}"
                          for which in figures.PASSES))
    first = next(run for run in runs if "tokens" in run.attributes and run["tokens"] > 0)
    time.set(xlabel="layer", ylabel="seconds of all layers so far")
    memory.set(xlabel="layer", ylabel="GiB kept of all layers so far, a rank")
    beside.set(xlabel=f"ms predicted: {calibrated}", ylabel="ms measured, busiest rank", xscale="log", yscale="log")
    beside.axline((1, 1), (10, 10), color="black", lw=0.6)
    figure.suptitle(f"{first['tokens']} tokens over {first['ranks']} ranks, forward and backward, predicted on {full}")
    figures.legend_below(figure, time.get_legend_handles_labels()[0], columns=4)
    return figure


runs = figures.read_runs(arguments.records, "model_stack")
runs.where_stack = figures.Runs(run for run in runs if run.name.startswith("stack "))
figures.save(draw(runs), arguments.figures, "model_stack", "")
