"""How many of a killed owner's chunks still close within their window, by latency (simulation/failover.py).

    python benchmarks/killed_owner.py [--kills 40] [--json]

Virtual time, so the table is the same on every machine. Takes about a minute of one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

import torch

from simulation.failover import SHARES, measure, table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=40, help="kills for each latency")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    rows = {share: measure(share, arguments.kills) for share in SHARES}
    if arguments.json:
        print(json.dumps([{"latency": share, **asdict(chunks)} for share, chunks in rows.items()], indent=1))
    else:
        print(table(rows))


if __name__ == "__main__":
    main()
