"""The command ``hvd-sparse launch``: starts a training script on several hosts through horovodrun.

It checks the hosts first, and adds the settings that people forget.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from hvd_sparse.cli._commands import Commands
from hvd_sparse.cli.hosts import (
    Facts,
    Host,
    LaunchError,
    check_interface,
    common_interface,
    parse_hosts,
    read_hostfile,
)
from hvd_sparse.cli.survey import over_ssh, survey

SSH = ("ssh", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=no", "-o", "ConnectTimeout=10")
PASSED = ("HVD_SPARSE_", "HOROVOD_")
"""Beginnings of the names of settings that reach every rank."""

YIELDING = ("--oversubscribe", "--mca mpi_yield_when_idle 1")
"""Options of mpirun with which waiting ranks yield their core to those that work: a one-element
allreduce of 4 ranks on 2 cores took 36 ms without them, and 1 ms with them."""

NAMES = {"gloo": "Gloo", "mpi": "MPI"}

KEEPALIVE = "-o ServerAliveInterval=4 -o ServerAliveCountMax=5"
"""Options of ssh with which a session to a frozen or unreachable host ends; without them it would
stay for ever."""

DESCRIPTION = """\
Start a training script on several hosts through horovodrun.

First it asks every host for its versions, its interfaces and whether it reaches the others, and
names the one that does not fit. Then it starts horovodrun with the interface that joins the hosts,
with waiting ranks that yield where ranks outnumber cores, with every HVD_SPARSE_* and HOROVOD_*
setting, and with one log a rank.

  hvd-sparse launch -H host1:2,host2:2 -- python train.py --epochs 3
"""


def add_parser(commands: Commands) -> None:
    """Add the sub-command to the parser."""
    parser = commands.add_parser(
        "launch",
        help="start a training script on several hosts",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    where = parser.add_mutually_exclusive_group()
    where.add_argument(
        "-H", "--hosts", help="host1:2,host2:2: names, and how many ranks each takes (default 1)"
    )
    where.add_argument(
        "--hostfile", type=Path, help="one host a line: NAME, NAME:RANKS or NAME slots=RANKS"
    )
    parser.add_argument(
        "-np", "--ranks", type=int, help="how many ranks (default: as many as the hosts take)"
    )
    parser.add_argument(
        "--controller",
        choices=("gloo", "mpi"),
        help="default gloo, which needs no MPI; mpi where Horovod was built without Gloo",
    )
    parser.add_argument(
        "--interface",
        help="network interface between the hosts (default: the one of their addresses)",
    )
    parser.add_argument(
        "--log-dir", type=Path, default=Path("logs"), help="rank.N.log goes here (default logs)"
    )
    parser.add_argument(
        "--python", default=sys.executable, help="the ranks' Python, to ask the hosts with"
    )
    parser.add_argument("--ssh-port", type=int, help="default 22")
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="OPTION",
        help="handed to horovodrun as it is",
    )
    parser.add_argument("--check-only", action="store_true", help="ask the hosts, start nothing")
    parser.add_argument(
        "--no-check", action="store_true", help="ask no host; then --interface has to be said"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command, start nothing")
    parser.add_argument(
        "command", nargs=argparse.REMAINDER, metavar="-- COMMAND", help="what every rank runs"
    )
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Run the sub-command.

    Returns
    -------
    The exit code of horovodrun; 0 after a check or a dry run that found nothing wrong
    """
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    if not command and not options.check_only:
        raise LaunchError("nothing to run: end with -- python train.py")
    hosts = _hosts(options)
    facts = None
    if not options.no_check:
        facts = survey(hosts, options.python, _files(command), _ssh(options))
        print(
            f"{len(facts)} host{'s' * (len(facts) > 1)}, the same versions, all reach each other",
            file=sys.stderr,
        )
    options.controller = choose_controller(options.controller, facts)
    if options.check_only:
        return 0
    whole, environment = build(options, hosts, facts, command, os.environ)
    if options.dry_run:
        print(
            shlex.join(["env", *(f"{name}={value}" for name, value in environment.items()), *whole])
        )
        return 0
    return _start(whole, {**os.environ, **environment}, options, hosts)


def _hosts(options: argparse.Namespace) -> list[Host]:
    if options.hostfile is not None:
        hosts = read_hostfile(options.hostfile)
    else:
        hosts = parse_hosts(options.hosts or f"localhost:{options.ranks or 1}")
    slots = sum(host.slots for host in hosts)
    options.ranks = slots if options.ranks is None else options.ranks
    if not 1 <= options.ranks <= slots:
        raise LaunchError(
            f"-np {options.ranks}: the hosts take 1 to {slots} ranks; give more of them in -H"
        )
    return hosts


def choose_controller(wanted: str | None, facts: dict[str, Facts] | None) -> str:
    """Return by what the ranks find each other: "gloo" or "mpi".

    Parameters
    ----------
    wanted : on the command line; None leaves the choice to what Horovod was built with
    facts : of every host, by name; None if they were not asked

    Raises
    ------
    LaunchError
        If a host's Horovod was built without it.
    """
    built = {name: found["controllers"] for name, found in (facts or {}).items()}
    if wanted is None:
        wanted = "mpi" if built and not any("gloo" in each for each in built.values()) else "gloo"
    for name, each in built.items():
        if wanted not in each:
            others = "".join(f"say --controller {other}, or " for other in each)
            raise LaunchError(
                f"Horovod on host {name!r} was built without {NAMES[wanted]}: {others}build it "
                f"with HOROVOD_WITH_{wanted.upper()}=1"
            )
    return wanted


def _files(command: Sequence[str]) -> list[str]:
    """Return the script that every host must have."""
    return [part for part in command if part.endswith(".py")][:1]


def build(
    options: argparse.Namespace,
    hosts: Sequence[Host],
    facts: dict[str, Facts] | None,
    command: Sequence[str],
    surroundings: Mapping[str, str],
) -> tuple[list[str], dict[str, str]]:
    """Return the command line of horovodrun, and the settings for it and the ranks.

    Parameters
    ----------
    options : of the command line
    hosts : of the launch
    facts : of every host, by name; None if they were not asked
    command : that every rank runs
    surroundings : settings of this process

    Raises
    ------
    LaunchError
        If the interface between the hosts is unknown, or there is no horovodrun.
    """
    several = len(hosts) > 1
    interface = options.interface or (common_interface(facts) if facts else None)
    if several and interface is None and facts is None:
        raise LaunchError(
            "--no-check leaves the interface between the hosts unknown: say --interface"
        )
    settings = {
        name: value for name, value in sorted(surroundings.items()) if name.startswith(PASSED)
    }
    line = [
        _horovodrun(options.python),
        f"--{options.controller}",
        "-np",
        str(options.ranks),
        "--disable-cache",
    ]
    line += ["-H", ",".join(f"{host.name}:{host.slots}" for host in hosts)]
    if interface is not None:
        line += ["--network-interfaces", check_interface(interface)]
    if options.ssh_port:
        line += ["--ssh-port", str(options.ssh_port)]
    crowded = [host.name for host in hosts if facts and host.slots > facts[host.name]["cores"]]
    if crowded:
        settings.setdefault("OMP_NUM_THREADS", surroundings.get("OMP_NUM_THREADS", "1"))
    if options.controller == "mpi" and crowded:
        line += [f"--mpi-args={' '.join(YIELDING)}"]
    if options.controller == "mpi" and several:
        settings["OMPI_MCA_plm_rsh_args"] = surroundings.get("OMPI_MCA_plm_rsh_args", KEEPALIVE)
    line += ["--output-filename", str(options.log_dir), *options.option]
    # one file a rank, with errors among the output where they belong
    return [*line, "sh", "-c", 'exec "$@" 2>&1', "sh", *command], settings


def _horovodrun(python: str) -> str:
    """Return the horovodrun beside the ranks' Python, else the one that PATH finds."""
    beside = Path(python).parent / "horovodrun"
    found = str(beside) if beside.exists() else shutil.which("horovodrun")
    if found is None:
        raise LaunchError(
            f"there is no horovodrun beside {python}: install Horovod there (scripts/setup builds "
            "it)"
        )
    return found


def _start(
    whole: Sequence[str],
    environment: Mapping[str, str],
    options: argparse.Namespace,
    hosts: Sequence[Host],
) -> int:
    """Become horovodrun, or supervise its mpirun; links to the logs are made beforehand."""
    folder: Path = options.log_dir
    folder.mkdir(parents=True, exist_ok=True)
    width = len(str(options.ranks - 1))
    for rank in range(options.ranks):
        log = folder / f"rank.{rank}.log"
        inner = f"rank.{rank:0{width}}/stdout"
        log.unlink(missing_ok=True)
        log.symlink_to(inner if options.controller == "gloo" else f"1/{inner}")
    print(f"one log a rank: {folder / 'rank.N.log'}", file=sys.stderr, flush=True)
    if options.controller == "mpi" and len(hosts) > 1:
        from hvd_sparse.cli.supervise import supervise  # needs psutil, which only Horovod brings

        ssh = _ssh(options)
        return supervise(
            whole, environment, {host.name: over_ssh(ssh, host, "true") for host in hosts}
        )
    os.execve(whole[0], list(whole), dict(environment))


def _ssh(options: argparse.Namespace) -> list[str]:
    return [*SSH, *(["-p", str(options.ssh_port)] if options.ssh_port else [])]
