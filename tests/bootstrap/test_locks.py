"""The lock on an identity outlives its process as long as a child that inherited it."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest

from bootstrap.locks import ClaimedFile
from protocol.errors import UserError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "identity"
    path.touch()
    return path


def test_one_at_a_time(file: Path) -> None:
    claim = ClaimedFile(file)
    with pytest.raises(UserError, match="another running peer uses it"):
        ClaimedFile(file)
    claim.release()
    claim.release()
    ClaimedFile(file).release()


def test_a_restart_waits_for_the_child_of_its_former_life(file: Path) -> None:
    claim = ClaimedFile(file)
    command = [sys.executable, "-c", "input()"]  # ends when its input closes
    with subprocess.Popen(command, stdin=subprocess.PIPE, pass_fds=(claim.descriptor,)) as child:
        claim.release()  # what a kill does
        with pytest.raises(UserError, match="another running peer uses it"):
            asyncio.run(ClaimedFile.when_free(file, patience=0.2))

        async def restart() -> ClaimedFile:
            waiting = asyncio.create_task(ClaimedFile.when_free(file, patience=30))
            await asyncio.sleep(0)
            assert child.stdin is not None
            child.stdin.close()
            return await waiting

        asyncio.run(restart()).release()
