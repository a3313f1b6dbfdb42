"""How OpenMP's threads wait for each other, so that a busy machine costs its share and not a multiple."""

import os

# Of the OpenMP of GCC, turns of the loop in which a thread waits, tens of microseconds; of LLVM's and Intel's, milliseconds.
_CHOSEN = {"GOMP_SPINCOUNT": "1000", "KMP_BLOCKTIME": "1"}


def choose_waiting() -> None:
    """Let waiting threads spin for a short time and then sleep, unless the user set a variable that says how they wait.

    By default they spin for milliseconds. Beside another busy process, the thread that they wait for may not be running, and
    they keep it from running. A short time is enough to bridge the gaps between the operations of a network, where sleeping
    at once would cost a wake-up each. Must be called before torch is imported, as OpenMP reads its variables when it is
    loaded. Results do not depend on it.
    """
    if not any(name in os.environ for name in ("OMP_WAIT_POLICY", *_CHOSEN)):
        os.environ.update(_CHOSEN)
