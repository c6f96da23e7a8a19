"""The tables of the demo."""

from rich.box import SIMPLE_HEAD
from rich.table import Table

COLUMNS = (
    "test\naccuracy",
    "bytes sent\nper step\nand worker",
    "times\nsmaller\nthan\ndense",
    "density\nasked",
    "density\nachieved",
    "seconds\nper step\n(median)",
)


def print_table(console, title, runs):
    """Print one row per run. The first run is the dense one, with which the others are compared."""
    caption = "All workers share this machine, so fewer bytes save hardly any seconds here."
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
            *(
                "-" if density is None else f"{density:.4g}"  # None: all steps were dense
                for density in (summary["density_asked"], summary["density_achieved"])
            ),
            f"{summary['step_seconds']:.4f}",
        )
    console.print(table)


def print_wire(console, rate, runs):
    """Print one row per run over a slow link, and the speed-up of the last run over the first."""
    table = Table(title=f"The same over a wire of {rate}", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("method", no_wrap=True)
    for column in ("test\naccuracy", "seconds\nper step\n(median)", "seconds of\ntraining"):
        table.add_column(column, justify="right")
    for method, run in runs.items():
        summary = run.summary
        seconds = summary["training_seconds"]
        steps = f"{summary['step_seconds']:.4f}"
        table.add_row(method, f"{summary['test_accuracy']:.2%}", steps, f"{seconds:.1f}")
    console.print(table)
    first, last = (run.summary["training_seconds"] for run in (*runs.values(),)[:: len(runs) - 1])
    method = list(runs)[-1]
    console.print(f"Over this wire {method} trains {first / last:.1f} times as fast as dense.")
