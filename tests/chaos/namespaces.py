"""A small internet in network namespaces: one public segment, and homes behind routers that masquerade.

    public segment (bridge in `world`) 45.0.0.0/16
      ├── server namespaces, 45.0.0.N
      └── router namespaces, 45.0.1.N, masquerading ── home namespaces, 10.0.N.2

What a home sends out comes from its router's address; what nobody at home asked for is dropped. The addresses look
public, and exist in these namespaces only.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress

_NFT = """
table ip potluck {
  chain out { type nat hook postrouting priority 100; oifname "wan" masquerade; }
  chain through {
    type filter hook forward priority 0; policy drop;
    iifname "lan" accept;
    ct state established,related accept;
  }
  chain in { type filter hook input priority 0; iifname "wan" ct state new drop; }
}
"""
_IPTABLES = (
    "-t nat -A POSTROUTING -o wan -j MASQUERADE",
    "-P FORWARD DROP",
    "-A FORWARD -i lan -j ACCEPT",
    "-A FORWARD -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    "-A INPUT -i wan -m conntrack --ctstate NEW -j DROP",
)


class Unavailable(Exception):
    """This machine cannot do it; the message says why."""


def run(*command: str, into: str | None = None) -> None:
    """Run a command to its end. Unavailable, with its own words, if it fails."""
    done = subprocess.run(command, input=into, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise Unavailable(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")


class Internet:
    """Namespaces that vanish, with every process in them, on `close`."""

    def __init__(self) -> None:
        """Unavailable where not root, or without `ip netns`."""
        self._names: list[str] = []
        self._tag = secrets.token_hex(3)
        if os.geteuid() != 0:
            raise Unavailable("network namespaces need root")
        if not shutil.which("ip"):
            raise Unavailable("there is no `ip` command")
        try:
            self.world = self._namespace("world")
            self._in(self.world, "ip", "link", "add", "name", "br0", "type", "bridge")
            self._in(self.world, "ip", "link", "set", "dev", "br0", "up")
        except Unavailable:
            self.close()
            raise

    def server(self, number: int) -> str:
        """A namespace that anyone can dial, at 45.0.0.`number`."""
        name = self._namespace(f"s{number}")
        self._plug(name, f"45.0.0.{number}/16")
        return name

    def home(self, number: int) -> str:
        """A namespace behind a router of its own, which the others see as 45.0.1.`number`."""
        router, name = self._namespace(f"r{number}"), self._namespace(f"h{number}")
        self._plug(router, f"45.0.1.{number}/16")
        run("ip", "link", "add", "name", "lan", "netns", router, "type", "veth", "peer", "name", "eth0", "netns", name)
        for namespace, link, address in ((router, "lan", f"10.0.{number}.1/24"), (name, "eth0", f"10.0.{number}.2/24")):
            self._in(namespace, "ip", "address", "add", address, "dev", link)
            self._in(namespace, "ip", "link", "set", "dev", link, "up")
        self._in(name, "ip", "route", "add", "default", "via", f"10.0.{number}.1")
        self._in(router, "sysctl", "-qw", "net.ipv4.ip_forward=1")
        self._masquerade(router)
        return name

    def unplug(self, name: str) -> None:
        """Take a server's or router's cable out."""
        self._in(name, "ip", "link", "set", "dev", "wan", "down")

    def popen(self, name: str, command: Sequence[str], **options: object) -> subprocess.Popen[str]:
        """Start a process in a namespace, in a session of its own."""
        return subprocess.Popen(  # type: ignore[call-overload,no-any-return]
            ["ip", "netns", "exec", name, *command], start_new_session=True, text=True, **options
        )

    def pids(self) -> list[int]:
        """Every process in any of the namespaces."""
        found: list[int] = []
        for name in self._names:
            done = subprocess.run(
                ["ip", "netns", "pids", name], capture_output=True, text=True, timeout=20, check=False
            )
            found += map(int, done.stdout.split())
        return found

    def close(self) -> None:
        """End every process in the namespaces, and remove them."""
        for _ in range(50):
            if not (pids := self.pids()):
                break
            for pid in pids:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)
        for name in self._names:
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, timeout=20, check=False)
        self._names.clear()

    def _namespace(self, name: str) -> str:
        full = f"potluck-{self._tag}-{name}"
        run("ip", "netns", "add", full)
        self._names.append(full)
        self._in(full, "ip", "link", "set", "dev", "lo", "up")
        return full

    def _plug(self, name: str, address: str) -> None:
        """A cable from the namespace's `wan` to the bridge of the public segment."""
        end = f"p{secrets.token_hex(4)}"
        run("ip", "link", "add", "name", end, "netns", self.world, "type", "veth", "peer", "name", "wan", "netns", name)
        self._in(self.world, "ip", "link", "set", "dev", end, "master", "br0", "up")
        self._in(name, "ip", "address", "add", address, "dev", "wan")
        self._in(name, "ip", "link", "set", "dev", "wan", "up")

    def _masquerade(self, router: str) -> None:
        if shutil.which("nft"):
            run("ip", "netns", "exec", router, "nft", "-f", "-", into=_NFT)
        elif shutil.which("iptables"):
            for rule in _IPTABLES:
                self._in(router, "iptables", *rule.split())
        else:
            raise Unavailable("neither nft nor iptables is here to masquerade with")

    def _in(self, name: str, *command: str) -> None:
        run("ip", "netns", "exec", name, *command)
