"""What benchmarks that start `potluck bootstrap` themselves ask of it."""

from __future__ import annotations

import json
import subprocess


def ready_address(server: subprocess.Popen[str]) -> str:
    """The bootstrap server's first address, from its JSON lines."""
    assert server.stdout is not None
    for line in server.stdout:
        event = json.loads(line)
        if event.get("event") == "ready":
            return str(event["addresses"][0])
    raise SystemExit("the bootstrap server did not start")
