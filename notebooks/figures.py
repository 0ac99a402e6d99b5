"""What all figures share: reading the runs of a record, one style for print, saving.

A record (HDF5) explains itself: /runs is a flat table of all runs, every other group holds datasets of (run, ...), each
with units and description.
"""

import argparse
import itertools
import re
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import h5py
import matplotlib
import numpy as np

IN_NOTEBOOK = "ipykernel" in sys.modules
if not IN_NOTEBOOK:
    matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.ticker import FixedLocator, FuncFormatter
from matplotlib.transforms import Bbox

SCHEMA = 4
NOTEBOOKS = Path(__file__).resolve().parent
ROOT = NOTEBOOKS.parent
QUICKSTART = ROOT / "out" / "quickstart"
RESULTS = ROOT / "experiments" / "results"
PAGE_WIDTH = 7.1  # inches: two columns of a paper
PASSES = ("forward", "backward")

# The palette of Okabe and Ito (jfly.uni-koeln.de/color), from dark to light, so that it keeps its order in grey.
DARK, BLUE, GREEN, VERMILLION, PURPLE, SKY, ORANGE, YELLOW = PALETTE = (
    "#404040", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00", "#F0E442")
GREY = "#808080"

Style = namedtuple("Style", "color marker")
LAYOUT_STYLES = {
    "contiguous": Style(VERMILLION, "o"),
    "zigzag": Style(BLUE, "s"),
    "striped": Style(GREEN, "^"),
}
SCHEDULE_STYLES = {
    "ring": Style(VERMILLION, "^"), "joined-ring": Style(BLUE, "o"), "bidirectional": Style(PURPLE, "P"),
    "double-ring": Style(YELLOW, "<"), "pull": Style(DARK, "X"), "seen": Style(GREY, "*"), "all-gather": Style(ORANGE, "D"),
    "ulysses": Style(SKY, "v"), "pass-q": Style(GREEN, "s"), "merge": Style(BLUE, "o"), "merge:tree": Style(SKY, "v"),
}
OTHER_STYLES = Style(PURPLE, "D"), Style(ORANGE, "v"), Style(SKY, "P"), Style(DARK, "X")

plt.rcParams.update({
    "figure.dpi": 90,  # of figures in a notebook
    "font.size": 7.5, "axes.titlesize": 7.5, "axes.labelsize": 7.5, "legend.fontsize": 7, "figure.titlesize": 9,
    "xtick.labelsize": 6.5, "ytick.labelsize": 6.5, "axes.linewidth": 0.6, "lines.linewidth": 1.2, "lines.markersize": 4,
    "axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False, "hatch.linewidth": 0.4,
    "figure.constrained_layout.use": True, "savefig.dpi": 200, "pdf.fonttype": 42, "axes.axisbelow": True,
    "grid.color": "#D9D9D9", "grid.linewidth": 0.5,
})


# Reading

def values_of(dataset, index=()):
    """Values of an HDF5 dataset, or of a part; texts as str, enumerations as their names."""
    values = (dataset.asstr() if h5py.check_string_dtype(dataset.dtype) else dataset)[index]
    if "flag_meanings" in dataset.attrs:
        meanings = dict(zip(dataset.attrs["flag_values"], dataset.attrs["flag_meanings"].split()))
        values = np.array([meanings.get(value, "") for value in np.ravel(values)], dtype=str).reshape(np.shape(values))
    return values


class Run:
    """One run: `run["mask"]` is its entry in the table of runs, `run.read("work/pairs")` its part of a dataset. For a
    machine and a pass: `run.read("predicted/MACHINE/PASS/compute_time")`, likewise "measured/PASS/attend_time"; spans
    are "predicted/MACHINE/PASS/spans/begin"."""

    def __init__(self, table, index, record):
        self.table, self.index, self.file, self.record = table, index, table.file, record
        self.attributes = {column: values[index] for column, values in table.columns.items()}
        self.name = self.attributes["name"]

    def __getitem__(self, attribute):
        if attribute not in self.attributes:
            stop(f"{self.record}: run '{self.name}' has no attribute '{attribute}'")
        return self.attributes[attribute]

    def machines(self):
        return list(self.table.labels.get("machine", []))

    @property
    def tokens_per_rank(self):
        return int(self.attributes.get("padded_tokens", self["tokens"])) // int(self["ranks"])

    def __contains__(self, path):
        return self.find(path) is not None

    def read(self, path):
        found = self.find(path)
        if found is None:
            stop(f"{self.record}: run '{self.name}' has no dataset '{path}'")
        return values_of(*found)

    def find(self, path):
        """The dataset that holds it, and which part; None if the run has no such thing."""
        dataset, dimensions = self.table.dataset(path)
        parts, places, source = path.split("/"), {}, None
        if parts[0] == "predicted":
            source, parts = parts[1], [parts[0], *parts[2:]]
            places["machine"] = source
        if parts[0] in ("predicted", "measured") and parts[1] in PASSES:
            places["pass"] = parts.pop(1)
        if "spans" in parts:
            return self.find_spans(source or parts[0], places["pass"], parts[2:])
        if dataset is None:
            dataset, dimensions = self.table.dataset("/".join(parts))
        if dataset is None:
            return None
        index = []
        for dimension in dimensions:
            labels = self.table.labels.get(dimension)
            if dimension == "run":
                index.append(self.index)
            elif dimension in places:
                if places[dimension] not in labels:
                    return None
                index.append(labels.index(places[dimension]))
            elif labels and dimension not in self.table.lengths:
                index.append(slice(None))  # all of the named things
            else:
                index.append(slice(int(self.table.lengths[dimension][self.index])))
        return dataset, tuple(index)

    def find_spans(self, source, which, column):
        labels = self.table.labels
        if source not in labels.get("source", ()) or which not in labels.get("pass", ()):
            return None
        place = self.index, labels["source"].index(source), labels["pass"].index(which)
        count, first = (int(self.file[f"spans/{name}"][place]) for name in ("count", "first"))
        if count < 0:
            return None
        dataset = self.table.dataset(f"spans/{column[0] if column else 'rank'}")[0]
        return None if dataset is None else (dataset, slice(first, first + count))


class Table:
    """What all runs of a file share: the columns of /runs, how long each run is in each dimension, names of things."""

    def __init__(self, file):
        self.file = file
        self.columns = {name: values_of(column) for name, column in file["runs"].items()}
        self.lengths = {}
        if "lengths" in file:
            file["lengths"].visititems(self.add_length)
        self.labels = {name: list(values_of(scale)) for name, scale in file.items()
                       if isinstance(scale, h5py.Dataset) and scale.ndim == 1 and h5py.check_string_dtype(scale.dtype)}
        self.datasets = {}

    def add_length(self, name, item):
        if isinstance(item, h5py.Dataset):
            self.lengths[name] = values_of(item)

    def dataset(self, path):
        """The dataset and the names of its dimensions (none of a scale); None if there is none."""
        if path not in self.datasets:
            dataset = self.file.get(path)
            dataset = dataset if isinstance(dataset, h5py.Dataset) else None
            scales = [scale for scale in dataset.dims if len(scale)] if dataset else []
            self.datasets[path] = dataset, [scale[0].name.lstrip("/") for scale in scales]
        return self.datasets[path]


def runs_of(file, record):
    table = Table(file)
    return [Run(table, index, record) for index in range(len(file["run"]))]


class Runs(list):
    """Runs to draw, in the order of the record."""

    def unique(self, *attributes):
        """Values of an attribute, or tuples of several, in order of appearance."""
        return list(dict.fromkeys(tuple(run[a] for a in attributes) if len(attributes) > 1 else run[attributes[0]]
                                  for run in self))

    def where(self, **attributes):
        return Runs(run for run in self if all(run[name] == value for name, value in attributes.items()))

    def groups(self, *attributes):
        """Pairs (label, runs) for each combination of the attributes. The label, for file names, says what differs
        between groups: "causal ranks 8", or nothing if there is one group."""
        keys = [tuple(run[a] for a in attributes) for run in self]
        differing = [i for i in range(len(attributes)) if len({key[i] for key in keys}) > 1]
        for key in dict.fromkeys(keys):
            label = " ".join(key[i] if isinstance(key[i], str) else f"{attributes[i]} {key[i]}" for i in differing)
            yield label, Runs(run for run, other in zip(self, keys) if other == key)


def stop(message):
    """Ends the script with one line on stderr and status 1."""
    raise SystemExit(f"{Path(sys.argv[0]).name}: {message}")


def record_named(name):
    """A record of the repository, or else a prediction, which record_predictions.sh makes if quickstart.sh has not."""
    if (RESULTS / name).exists():
        return RESULTS / name
    made = QUICKSTART / name
    if not made.exists():
        subprocess.run([ROOT / "experiments/record_predictions.sh", "--output", QUICKSTART, made.stem],
                       stdout=subprocess.DEVNULL, check=True)
    return made


def arguments(description, record, *kept):
    """Command line of a script that draws from `record`, the name of the file that the experiment writes; without any,
    and in a notebook, from that of quickstart.sh, or where that was not run from `kept`, see record_named()."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="*", type=Path,
                        help=f"HDF5 records, or folders that hold a {record} (that of quickstart.sh, or else "
                             f"{', '.join(kept)} of the repository or predicted anew)")
    parser.add_argument("--figures", type=Path, help="folder for PNG and PDF (figures, beside the record)")
    given = parser.parse_args([] if IN_NOTEBOOK else None)
    if not given.records and not (QUICKSTART / record).exists():
        given.records = [record_named(name) for name in kept]
        given.figures = given.figures or ROOT / "out" / "figures"
    given.records = [path / record if path.is_dir() else path for path in given.records or [QUICKSTART / record]]
    given.figures = given.figures or given.records[0].parent / "figures"
    return given


def read_runs(records, *experiments):
    """All runs of the records. Each record must be of one of these experiments; otherwise the script ends with one line."""
    runs = Runs()
    for path in records:
        if not path.is_file():
            stop(f"there is no record {path}; make it with {experiments[0]} --output {path}")
        try:
            file = h5py.File(path, "r")
        except OSError as error:
            stop(f"{path} cannot be read as HDF5: {error}")
        found = file.attrs.get("experiment")
        if "ringlab_schema" not in file.attrs or found is None:
            stop(f"{path} is not a record of Ringlab")
        if file.attrs["ringlab_schema"] != SCHEMA:
            stop(f"{path} follows schema {file.attrs['ringlab_schema']}; this script reads {SCHEMA}")
        if found not in experiments:
            stop(f"{path} is a record of {found}; this script draws records of {' and '.join(experiments)}")
        runs += runs_of(file, path)
    if not runs:
        stop(f"{records[0]} holds no finished run" if records else f"no record of {experiments[0]} is given")
    return runs


def configuration(run):
    """The configuration of the run's record: {"tolerance": "1e-13", ...}."""
    lines = run.file.attrs["configuration"].splitlines()
    return dict(line.split(" = ", 1) for line in lines if " = " in line)


# Style

def layout_styles(runs):
    """Colour and marker of each layout: the same for known ones in every figure."""
    others = itertools.cycle(OTHER_STYLES)
    return {layout: LAYOUT_STYLES.get(layout) or next(others) for layout in runs.unique("layout")}


def schedule_style(name):
    """Colour and marker of a schedule: its own, or those of what stands before the first colon."""
    return SCHEDULE_STYLES.get(name) or SCHEDULE_STYLES.get(name.split(":")[0]) or Style(GREY, "x")


def rank_colors(ranks):
    """One colour for each rank: the palette for up to 8, a map that keeps its order in grey for more."""
    return PALETTE[:ranks] if ranks <= len(PALETTE) else [plt.cm.cividis(i / (ranks - 1)) for i in range(ranks)]


def ink_on(color):
    """Black or white, whichever reads better on the colour."""
    red, green, blue = matplotlib.colors.to_rgb(color)
    return "black" if 0.299 * red + 0.587 * green + 0.114 * blue > 0.5 else "white"


def panels(rows, columns, height, **options):
    """A figure of page width: rows x columns panels, each row `height` inches, axes always a 2-D array."""
    return plt.subplots(rows, columns, figsize=(PAGE_WIDTH, height * rows), squeeze=False, **options)


def start_at_zero(axes):
    """Lets the y axes of all panels begin at 0, once everything is drawn."""
    for axis in axes.flat:
        axis.set_ylim(bottom=0)


def tokens_text(tokens):
    """512, 8Ki or 1Mi."""
    return f"{tokens / 2**20:g}Mi" if tokens >= 2**20 else f"{tokens / 1024:g}Ki" if tokens >= 1024 else f"{tokens:g}"


def scale_by_tokens(axis, ticks=None):
    """A logarithmic x axis of tokens, which has these ticks alone if they are given."""
    axis.set_xscale("log", base=2)
    axis.xaxis.set_major_formatter(FuncFormatter(lambda tokens, _: tokens_text(tokens)))
    if ticks is not None:
        axis.set_xticks(sorted(ticks))
        axis.minorticks_off()


def scale_both(axis, what):
    """Both axes logarithmic, x the tokens `what`."""
    scale_by_tokens(axis)
    axis.set_yscale("log")
    axis.grid(True)
    axis.minorticks_off()
    axis.set_xlabel(what)


def draw_times(axis, runs, which, style, dashes="-", filled=False):
    """Milliseconds of a pass by tokens: a line as predicted on the first machine, marks as measured."""
    line = sorted(runs, key=lambda run: run["tokens"])
    tokens = [run["tokens"] for run in line]
    for machine in line[0].machines()[:1]:
        axis.plot(tokens, [1e3 * run[f"seconds_predicted_{which}_{machine}"] for run in line], color=style.color, ls=dashes)
    if f"measured/{which}/seconds" in line[0]:
        axis.plot(tokens, [1e3 * run[f"seconds_measured_{which}"] for run in line], style.marker, color=style.color,
                  mfc=style.color if filled else "none")


def count_ticks(axis, count):
    """Ticks 0, 1, 2 ... of a matplotlib axis, all of them or, of more than ten, some."""
    axis.set_major_locator(FixedLocator(range(0, count, (count + 9) // 10)))


def legend_below(figure, handles, columns):
    """One legend for all panels, under them, filled line by line."""
    columns = min(columns, len(handles))
    handles = [handle for column in range(columns) for handle in handles[column::columns]]
    figure.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, 0), ncol=columns)


# Saving

def save(figure, folder, *name):
    """Writes NAME.png (200 dpi) and NAME.pdf; parts of the name are joined, and what no file system likes replaced."""
    stem = "_".join(re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-") for part in name if part)
    folder.mkdir(parents=True, exist_ok=True)
    # Laying out costs as much as drawing: once, and not once more for each file and its outline.
    figure.draw_without_rendering()
    with plt.rc_context({"figure.constrained_layout.use": False}):
        figure.set_layout_engine(None)
    # The outline of axes leaves out how long their labels are: the label of a low colour bar would be cut.
    labels = [label.get_window_extent() for axes in figure.axes for label in (axes.xaxis.label, axes.yaxis.label)
              if label.get_text() and axes.get_visible()]
    outline = Bbox.union([figure.get_tightbbox(), *(label.transformed(figure.dpi_scale_trans.inverted())
                                                    for label in labels)]).padded(0.05)
    for suffix in (".png", ".pdf"):
        path = folder / (stem + suffix)
        figure.savefig(path, bbox_inches=outline)
        # What a notebook keeps of its output names no folder of the machine it ran on.
        print(path.relative_to(ROOT) if IN_NOTEBOOK and path.is_relative_to(ROOT) else path, flush=True)
    if not IN_NOTEBOOK:
        plt.close(figure)
