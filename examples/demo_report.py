"""The demo's table and picture."""

import matplotlib

matplotlib.use("Agg")  # no display is needed

import matplotlib.pyplot as plt
from matplotlib.ticker import MaxNLocator, PercentFormatter
from rich.box import SIMPLE_HEAD
from rich.table import Table

# Okabe and Ito's colours, which colour-blind readers can tell apart; lines and markers differ as
# well
STYLES = (
    {"color": "#000000", "linestyle": "-", "marker": "o"},
    {"color": "#0072B2", "linestyle": "--", "marker": "s"},
    {"color": "#D55E00", "linestyle": "-", "marker": "^"},
)
COLUMNS = (
    "test\naccuracy",
    "bytes sent\nper step\nand worker",
    "times\nsmaller\nthan\ndense",
    "density\nasked",
    "density\nachieved",
    "seconds\nper step\n(median)",
)


def print_table(console, title, runs):
    """Print one row per run; the first run is the dense one that the others are compared with."""
    caption = "All workers share this machine: a network feels the bytes, not these seconds."
    table = Table(title=title, caption=caption, box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in COLUMNS:
        table.add_column(column, justify="right")
    dense_bytes = next(iter(runs.values())).summary["bytes_per_step"]
    for method, run in runs.items():
        summary = run.summary
        table.add_row(
            method,
            f"{summary['test_accuracy']:.2%}",
            f"{summary['bytes_per_step']:,.0f}",
            f"{dense_bytes / summary['bytes_per_step']:.1f}",
            f"{summary['density_asked']:.4g}",
            f"{summary['density_achieved']:.4g}",
            f"{summary['step_seconds']:.4f}",
        )
    console.print(table)


def draw_curves(title, runs, path):
    """Draw test accuracy and training loss against the epoch, one line per run."""
    figure, (accuracy, loss) = plt.subplots(1, 2, figsize=(11, 4.5), layout="constrained")
    for (method, run), style in zip(runs.items(), STYLES):
        epochs = [line["epoch"] for line in run.epochs]
        for axes, quantity in ((accuracy, "test_accuracy"), (loss, "train_loss")):
            axes.plot(
                epochs, [line[quantity] for line in run.epochs], label=method, markersize=4, **style
            )
    accuracy.set_ylabel("test accuracy")
    accuracy.yaxis.set_major_formatter(PercentFormatter(1.0))
    loss.set_ylabel("training loss (cross-entropy, log scale)")
    loss.set_yscale("log")
    for axes in (accuracy, loss):
        axes.set_xlabel("epoch")
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.grid(alpha=0.3)
        axes.legend()
    figure.suptitle(f"Handwritten digits: {title}")
    figure.savefig(path, dpi=150)
    plt.close(figure)
