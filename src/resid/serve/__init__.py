"""The HTTP service of fitted models, and its page; `resid serve` runs it. It needs the extra ``serve``."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.serve.app import create_app
    from resid.serve.keys import Key, read_keys
    from resid.serve.server import serve
    from resid.serve.settings import ServeSettings

__all__ = ["Key", "ServeSettings", "create_app", "read_keys", "serve"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {"app": "create_app", "keys": "Key read_keys", "server": "serve", "settings": "ServeSettings"},
)
