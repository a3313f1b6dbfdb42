"""The settings of the service: its limits, and how requests are batched."""

from typing import Annotated

from pydantic import Field

from resid.core.settings import Settings, validated

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@validated
class ServeSettings(Settings):
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
        Seconds that a request waits for others to join its batch.
    reload_every
        Seconds between looks at the folders of the models; 0 takes up a new model on ``POST /reload`` only.
    """

    max_k: Count = 100
    max_users: Count = 256
    max_history: Count = 1_000
    max_body: Count = 2**20
    max_connections: Count = 1_000
    timeout: Seconds = 10.0
    max_queue: Count = 2_048
    batch_size: Count = 256
    batch_wait: Annotated[float, Field(ge=0, le=1)] = 0.002
    reload_every: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
