"""How OpenMP's threads wait for each other, so that a busy machine costs its share and not a multiple."""

import os

_CHOSEN = {"OMP_WAIT_POLICY": "passive"}
_OTHERS = ("GOMP_SPINCOUNT", "KMP_BLOCKTIME")


def choose_waiting() -> None:
    """Let waiting threads sleep, unless the user set a variable that says how they wait.

    By default they spin, for milliseconds. Beside another busy process, the thread that they wait for may not be running, and
    they keep it from running. Must be called before torch is imported, as OpenMP reads its variables when it is loaded. Results
    do not depend on it.
    """
    if not any(name in os.environ for name in (*_CHOSEN, *_OTHERS)):
        os.environ.update(_CHOSEN)
