"""Train on handwritten digits with dense, fp16 and sparse gradients, one after the other. Then
print a table, write a report, and repeat the dense and the sparse training over a slow link, if
this machine can simulate one."""

import argparse
import signal
import sys
from pathlib import Path

from common import STOCK
from demo_runs import LAUNCHERS, LaunchError, Run, hosts_apart, why_not
from demo_table import print_table, print_wire
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from spelling import density_argument

from hvd_sparse.cli import main as report

EXAMPLES = {
    "pytorch": ("PyTorch", "pytorch_digits.py"),
    "tensorflow": ("TensorFlow GradientTape", "tensorflow2_digits.py"),
    "keras": ("Keras model.fit", "tensorflow2_keras_digits.py"),
}
METHODS = {  # from --compression of the example to the name in table and report
    "none": "dense",
    "fp16": "fp16",
    "ldte_bs": "sparse (LDTE-BS)",
}

OVER_WIRE = {name: METHODS[name] for name in ("none", "ldte_bs")}
WIRE, WIRE_IN_WORDS = "100mbit", "100 Mbit/s"

LEARNING_RATE, MOMENTUM = 0.02, 0.9
TOLD_EVERY = 5
"""Number of epochs between two printed lines, if the output is not a terminal."""


def parse_arguments():
    parser = argparse.ArgumentParser(
        prog="scripts/demo",
        description=__doc__,
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument(
        "--framework", choices=EXAMPLES, default="pytorch", help="framework of the training"
    )
    parser.add_argument(
        "--np", type=int, default=2, metavar="N", help="number of workers, at least 2"
    )
    parser.add_argument(
        "--density",
        type=density_text,
        help="fraction of the entries that the sparse run sends, a mapping by tensor name, as in "
        "\"{'fc*': 0.01, '*': 0.001}\", or, in PyTorch, hiding; None: computed from the number of "
        "steps",
    )
    parser.add_argument("--epochs", type=int, default=25, help="number of epochs of each training")
    parser.add_argument("--seed", type=int, default=1, help="seed of weights and batches")
    parser.add_argument(
        "--output", type=Path, default=Path("demo-output"), metavar="DIR", help="logs and report"
    )
    parser.add_argument(
        "--launcher",
        choices=LAUNCHERS,
        default="gloo",
        help="library with which horovodrun starts the workers",
    )
    args = parser.parse_args()
    if args.np < 2:
        parser.error("--np must be at least 2: a single worker sends nothing")
    if args.epochs < 1:
        parser.error("--epochs must be at least 1")
    return args


def density_text(text):
    """Check a density, and give its text, as the workers' own command lines read it."""
    density_argument(text)
    return text.strip()


def command_of(args, compression, telemetry):
    """Return the command that one worker runs."""
    script = Path(__file__).with_name(EXAMPLES[args.framework][1])
    options = {
        "compression": compression,
        "epochs": args.epochs,
        "seed": args.seed,
        "lr": LEARNING_RATE,
        "momentum": MOMENTUM,
        "telemetry": telemetry,
    }
    if args.density is not None and compression not in STOCK:
        options["density"] = args.density
    return [sys.executable, str(script)] + [f"--{name}={value}" for name, value in options.items()]


def train_all(args, console, methods, wire=()):
    """Run the methods one after the other, each with a progress bar; return the runs by method.

    wire : prefix of the command, which runs each worker on a host of its own
    """
    columns = [
        TextColumn("{task.description:<16}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("epochs, {task.fields[state]}"),
        TimeElapsedColumn(),
    ]
    runs = {}
    with Progress(*columns, console=console) as progress:
        bars = {
            method: progress.add_task(method, total=args.epochs, start=False, state="waiting")
            for method in methods.values()
        }
        for compression, method in methods.items():
            bar = bars[method]
            progress.start_task(bar)
            progress.update(bar, state="starting")
            name = f"{args.framework}-{compression}{'-wire' if wire else ''}"
            telemetry = telemetry_of(args, name)
            telemetry.unlink(missing_ok=True)  # because records are appended to an existing file
            run = Run(args, command_of(args, compression, telemetry), name, wire)
            for line in run.follow():
                if not console.is_terminal and line["epoch"] % TOLD_EVERY == 0:
                    console.print(
                        f"{method}: epoch {line['epoch']} of {args.epochs}, "
                        f"test accuracy {line['test_accuracy']:.1%}"
                    )
                progress.update(
                    bar, completed=line["epoch"], state=f"test accuracy {line['test_accuracy']:.1%}"
                )
            runs[method] = run
    return runs


def telemetry_of(args, name):
    """Return the path of a run's records."""
    return args.output.absolute() / f"{name}.telemetry.jsonl"


def write_report(args, title):
    """Write the report of ``hvd-sparse report`` about all runs."""
    path = args.output / f"{args.framework}-report.html"
    told = [
        f"{method}={telemetry_of(args, f'{args.framework}-{each}')}"
        for each, method in METHODS.items()
    ]
    options = ["-o", str(path), "--title", f"Handwritten digits: {title}"]
    if report(["report", *told, *options]):
        sys.exit(1)  # the command has printed the error


def main():
    args = parse_arguments()
    signal.signal(
        signal.SIGTERM, lambda *_: sys.exit(143)
    )  # an exception, so that ``Run.follow`` ends the workers
    args.output.mkdir(parents=True, exist_ok=True)
    console = Console()
    framework = EXAMPLES[args.framework][0]
    sent = "set by steps" if args.density is None else args.density
    title = f"{framework}, {args.np} workers ({args.launcher}), density {sent}"
    console.print(f"[bold]==> Handwritten digits: {title}[/bold]")
    try:
        runs = train_all(args, console, METHODS)
        print_table(console, title, runs)
        write_report(args, title)
        show_wire(args, console)
    except LaunchError as error:
        sys.exit(f"error: {error}")
    except KeyboardInterrupt:
        sys.exit(130)


def show_wire(args, console):
    """Train dense and sparse again, over a slow link between the workers."""
    console.print(f"[bold]==> The same training over a wire of {WIRE_IN_WORDS}[/bold]")
    wire = hosts_apart(args, WIRE)
    reason = why_not(wire)
    if reason:
        console.print(f"Not shown: this machine gives no network namespaces ({reason})")
        return
    print_wire(console, WIRE_IN_WORDS, train_all(args, console, OVER_WIRE, wire))


if __name__ == "__main__":
    main()
