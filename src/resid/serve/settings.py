"""The settings of the service: its limits, and how requests are batched. `resid serve` has them as options."""

import math
from dataclasses import asdict, dataclass

from resid.core.errors import InputError


@dataclass(frozen=True)  # without pydantic, as `resid --help` reads it
class ServeSettings:
    """What a service accepts, and how it batches.

    Parameters
    ----------
    max_k
        Items per user.
    max_users
        Users per request.
    max_history
        Items of a history, and of `allow` and `deny` together.
    max_body
        Bytes of a request's body.
    max_connections
        Connections at a time; more are answered with 503.
    timeout
        Seconds for receiving a body, and for an answer of the model.
    max_queue
        Users that wait for the model; more are answered with 503.
    batch_size
        Users that the model ranks at a time.
    batch_wait
        Seconds that the model waits for the clients that it has just answered to join a batch; a single client never waits.
    reload_every
        Seconds between looks at the folders of the models; 0 takes up a new model on ``POST /reload`` only.
    """

    max_k: int = 100
    max_users: int = 256
    max_history: int = 1_000
    max_body: int = 2**20
    max_connections: int = 1_000
    timeout: float = 10.0
    max_queue: int = 2_048
    batch_size: int = 256
    batch_wait: float = 0.004
    reload_every: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            may_be_zero = name in ("batch_wait", "reload_every")
            if not math.isfinite(value) or value < 0 or (not value and not may_be_zero):
                least = "0 or more" if may_be_zero else "greater than 0"
                raise InputError(f"invalid value {value} for '{name}': it must be {least}.")
        if self.batch_wait > 1:
            raise InputError(f"invalid value {self.batch_wait} for 'batch_wait': it must be at most 1.")
