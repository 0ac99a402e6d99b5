"""Draws what a token costs when keys and values are sharded: time of one layer's attention from the newest tokens against
the length of what they look back on, by schedule, measured (records of decode) and predicted (of decode, or of predict
--queries 1)."""

# %% [markdown]
# # Decoding over a sharded cache
# Marks are measured, lines predicted on a machine. merge leaves the cache where it is and brings partial results
# together; pass-q lets the row visit one rank after another; ring and all-gather move the cache to the row.

# %%
from matplotlib.lines import Line2D

import figures

arguments = figures.arguments(__doc__, "decode.h5", "decode_2cpus.h5", "decode_predicted.h5")
panels = [cases for path in arguments.records
          for _, cases in figures.read_runs([path], "decode", "predict").groups("layout", "ranks", "queries")]
figure, axes = figures.panels(1, len(panels), 2.6)
for axis, cases in zip(axes.flat, panels):
    run = cases[0]
    axis.set_title(f"P = {run['ranks']}, {run['layout']}, {run['query_heads']}:{run['kv_heads']} heads of {run['head_dim']}"
                   + "".join(f"\npredicted on {machine}" for machine in run.machines()[:1]))
    for schedule in cases.unique("schedule"):
        figures.draw_times(axis, cases.where(schedule=schedule), "forward", figures.schedule_style(schedule))
    figures.scale_both(axis, "tokens in the cache")
axes[0, 0].set_ylabel("ms for a token, one layer")
schedules = dict.fromkeys(name for cases in panels for name in cases.unique("schedule"))
figures.legend_below(figure, [Line2D([], [], color=style.color, marker=style.marker, mfc="none", label=name)
                              for name in schedules for style in [figures.schedule_style(name)]], columns=7)
figures.save(figure, arguments.figures, "decode")
