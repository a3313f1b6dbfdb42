"""How OpenMP's threads wait for each other, so that a busy machine costs its share and not a multiple."""

import os
import time
from pathlib import Path

_SLEEP = {"OMP_WAIT_POLICY": "passive", "KMP_BLOCKTIME": "0"}
# Of the OpenMP of GCC, turns of the loop in which a thread waits, tens of microseconds; of LLVM's and Intel's, milliseconds.
_SPIN_BRIEFLY = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}
_SAMPLES = 5  # of the number of running threads, 2 ms apart


def choose_waiting(load: Path = Path("/proc/loadavg")) -> None:
    """Choose how threads wait, unless the user set a variable that says it.

    By default they spin for milliseconds, which is fastest on an idle machine. Beside another busy process, the thread that they
    wait for may not be running, and they keep it from running; if there is one now, they sleep instead. Where the load is
    unknown, they spin for a short time. Must be called before torch is imported, as OpenMP reads its variables when it is
    loaded. Results do not depend on it.

    Parameters
    ----------
    load
        The file in which Linux has the number of running threads.
    """
    if any(name in os.environ for name in (*_SLEEP, *_SPIN_BRIEFLY)):
        return
    try:
        busy = _cores_are_short(load)
    except (OSError, ValueError, IndexError):
        os.environ.update(_SPIN_BRIEFLY)
    else:
        os.environ.update(_SLEEP if busy else {})


def _cores_are_short(load: Path) -> bool:
    """Return whether other processes need a core that the threads of this one would use."""
    running = []
    for _ in range(_SAMPLES):
        running.append(int(load.read_text().split()[3].split("/")[0]))
        time.sleep(0.002)
    cores = os.cpu_count() or 1
    threads = int(os.environ.get("OMP_NUM_THREADS") or cores)
    return min(running) - 1 > cores - threads  # this process is one of the running
