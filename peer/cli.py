"""The command `potluck`. Its exit codes are in peer/exit_codes.py, and for users in README.md.

Everything heavy (torch, hivemind) is imported inside the commands, so that `--help` answers at once.
"""

from __future__ import annotations

import signal
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Annotated

from cyclopts import App, CycloptsError, Parameter

from peer.commands.options import PeerOptions, SwarmOptions
from peer.commands.plan_options import PlanOptions
from peer.exit_codes import DONE, FAILED, INTERRUPTED, MISTAKE, NO_READER
from peer.output import complain, discard, open_standard_streams
from protocol.errors import UserError

_NO_SWARM_FLAGS = SwarmOptions()
_NO_PEER_FLAGS = PeerOptions()
_NO_PLAN_FLAGS = PlanOptions()


def _version() -> str:
    try:
        return version("potluck-train")
    except PackageNotFoundError:  # a source tree that is not installed
        return "unknown"


app = App(
    name="potluck",
    help="Train one language model on computers that belong to many people.",
    version=_version,
    default_parameter=Parameter(negative=(), show_default=False),
)


@app.command
def swarm(options: Annotated[SwarmOptions, Parameter(name="*")] = _NO_SWARM_FLAGS) -> int:
    """Start a bootstrap server and several peers on this machine, and report what they did."""
    from peer.commands.swarm import run_swarm

    return run_swarm(options)


@app.command
def peer(options: Annotated[PeerOptions, Parameter(name="*")] = _NO_PEER_FLAGS) -> int:
    """Join a run and train."""
    from peer.commands.volunteer import run_volunteer

    return run_volunteer(options)


@app.command
def bootstrap(
    *,
    manifest: Annotated[Path | None, Parameter(help="Manifest of the run to publish.")] = None,
    data: Annotated[str | None, Parameter(help="Where the run's text is, if the manifest is not sealed.")] = None,
    join: Annotated[tuple[str, ...], Parameter(consume_multiple=True, help="Other entry nodes.")] = (),
    listen: Annotated[str, Parameter(help="Address to listen at.", show_default=True)] = "/ip4/0.0.0.0/tcp/4001",
    announce: Annotated[str | None, Parameter(help="Address that others shall dial, if it is another.")] = None,
    identity: Annotated[Path, Parameter(help="File of the private key.", show_default=True)] = Path(
        "potluck-out/bootstrap.key"
    ),
    aggregate: Annotated[bool, Parameter(help="Also own chunks of the run, without training.")] = False,
    run: Annotated[str | None, Parameter(help="Which run to aggregate, if several are here.")] = None,
    json: Annotated[bool, Parameter(help="Report as JSON lines.")] = False,
) -> int:
    """Run an entry node: where peers meet, and where a run's manifest is found."""
    from peer.commands.entry_node import EntryOptions, run_entry_node

    return run_entry_node(
        EntryOptions(
            manifest=manifest,
            data=data,
            join=join,
            listen=listen,
            announce=announce,
            identity=identity,
            aggregate=aggregate,
            run=run,
            json=json,
        )
    )


@app.command
def init(
    *,
    preset: Annotated[str, Parameter(help="demo, default or paper.", show_default=True)] = "default",
    model: Annotated[str | None, Parameter(help="tiny or 35m.")] = None,
    out: Annotated[Path | None, Parameter(help="File to write; without it, standard output.")] = None,
) -> int:
    """Write a manifest with comments, to edit and to start a run from."""
    from peer.commands.manifests import write_preset

    return write_preset(preset, model, out)


@app.command
def status(
    *,
    join: Annotated[tuple[str, ...], Parameter(consume_multiple=True, help="Addresses of the swarm.")],
    run: Annotated[str | None, Parameter(help="Run id or name, if the swarm has several runs.")] = None,
    json: Annotated[bool, Parameter(help="As one JSON object.")] = False,
) -> int:
    """Show who is in a swarm, at which step, and with which heads."""
    from peer.status import show_status

    return show_status(join, json, run)


@app.command
def simulate(
    *,
    peers: Annotated[str, Parameter(help="Peers of a swarm: a number, or a range.", show_default=True)] = "2..12",
    seeds: Annotated[int, Parameter(help="How many runs.", show_default=True)] = 300,
    faults: Annotated[str, Parameter(help="all, or kinds with commas between.", show_default=True)] = "all",
    first: Annotated[int, Parameter(name="--from", help="The first seed.", show_default=True)] = 0,
    jobs: Annotated[int | None, Parameter(help="Processes; without it, one a core.")] = None,
    json: Annotated[bool, Parameter(help="The result as one JSON object.")] = False,
) -> int:
    """Run seeded swarms under faults on a virtual network, and check every promise of the protocol."""
    from peer.commands.simulate import SimulateOptions, run_simulate

    return run_simulate(SimulateOptions(peers=peers, seeds=seeds, faults=faults, first=first, jobs=jobs, json=json))


@app.command
def plan(options: Annotated[PlanOptions, Parameter(name="*")] = _NO_PLAN_FLAGS) -> int:
    """Know before you start: utilization, traffic and memory of a model on given links."""
    from peer.commands.plan import run_plan

    return run_plan(options)


@app.command
def lab(
    name: Annotated[str, Parameter(help="An entry, all, list, or swarm.")],
    *,
    model: Annotated[str | None, Parameter(help="small, tiny or 35m; without it, small.")] = None,
    steps: Annotated[int | None, Parameter(help="Length of a run; without it, the entry's.")] = None,
    seeds: Annotated[int | None, Parameter(help="Runs of each case, 3 if not given.")] = None,
    quick: Annotated[bool, Parameter(help="One seed and a few rounds: whether it works, not what it shows.")] = False,
    out: Annotated[Path | None, Parameter(help="Folder of the results; without it, runs/lab.")] = None,
    data: Annotated[str | None, Parameter(help="bible (default), stdlib, or text files and directories.")] = None,
    device: Annotated[str, Parameter(help="cpu or cuda.", show_default=True)] = "cpu",
    outer: Annotated[str | None, Parameter(help="Outer rate and momentum of the usual recipe; 0.4,0.9.")] = None,
    jobs: Annotated[int | None, Parameter(help="Runs at once; without it, one a core.")] = None,
    json: Annotated[bool, Parameter(help="The results as one JSON object.")] = False,
    manifest: Annotated[Path | None, Parameter(help="swarm: the run's manifest.")] = None,
    peers: Annotated[int | None, Parameter(help="swarm: number of peers; without it, the run's start_peers.")] = None,
    seed: Annotated[int | None, Parameter(help="swarm: seed, if not the manifest's.")] = None,
) -> int:
    """Compare methods of training on a small model in one process, without a network."""
    from peer.commands.lab import LabOptions, run_lab

    return run_lab(
        LabOptions(
            name=name,
            model=model,
            steps=steps,
            seeds=seeds,
            quick=quick,
            out=out,
            data=data,
            device=device,
            outer=outer,
            jobs=jobs,
            json=json,
            manifest=manifest,
            peers=peers,
            seed=seed,
        )
    )


def main(argv: list[str] | None = None) -> None:
    """Run the command that `argv` (default: the process's arguments) names, and exit with its code."""
    open_standard_streams()
    code = run(sys.argv[1:] if argv is None else argv)
    # The work is done: a Ctrl-C while the interpreter tidies up ends it, and has nothing to say.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    sys.exit(code)


def run(argv: list[str]) -> int:
    """The exit code of a command. The user's mistakes become one line on stderr."""
    try:
        code = app(argv or ["--help"], exit_on_error=False, print_error=False, result_action="return_value")
        sys.stdout.flush()
    except (UserError, CycloptsError) as error:
        complain(" ".join(str(error).split()))
        return MISTAKE
    except KeyboardInterrupt:
        return INTERRUPTED
    except OSError as error:  # a full disk, a folder that may not be written: the system's words say it
        return _output_or_system(error)
    return code if isinstance(code, int) else DONE


def _output_or_system(error: OSError) -> int:
    """The exit code for an error of the system's: of our standard output, or of anything else."""
    from peer.commands.reader import has_no_reader

    gone = isinstance(error, BrokenPipeError) and has_no_reader()
    discard(sys.stdout)  # or the interpreter would complain about it while it exits
    if gone:
        return NO_READER
    complain(str(error))
    return FAILED


if __name__ == "__main__":
    main()
