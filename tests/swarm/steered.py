"""`potluck` on a computer that a test steers: `steered.py SECONDS JUMP arguments…`.

No inner step takes less than SECONDS, however fast the machine, so that there is time for something to happen. SIGUSR1
sets the clock by JUMP seconds: whatever reads the time of day in this process, hivemind's DHT too, then reads another.
"""

import os
import signal
import sys
import time
from typing import Any

floor, jump = float(sys.argv[1]), float(sys.argv[2])
sys.path[0] = os.getcwd()
offset = [0.0]
time_of_day = time.time


def set_the_clock(number: int, frame: object) -> None:
    offset[0] = jump


time.time = lambda: time_of_day() + offset[0]  # before anybody has taken the function away
signal.signal(signal.SIGUSR1, set_the_clock)

from peer import cli, trainer  # noqa: E402

train_step = trainer.train_step


def unhurried(*arguments: Any, **options: Any) -> Any:
    began = time.monotonic()
    result = train_step(*arguments, **options)
    time.sleep(max(0.0, floor - (time.monotonic() - began)))
    return result


trainer.train_step = unhurried
cli.main(sys.argv[3:])
