"""G-stage: generators predict the next item's ID code by code; decoding turns their probabilities into items."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.generate.base import Generator
    from resid.generate.joint import JointGenerator, JointModel
    from resid.generate.onepass import OnePassGenerator, OnePassModel
    from resid.generate.settings import JointSettings, OnePassSettings, T5Settings
    from resid.generate.t5 import T5Generator, T5Model

__all__ = [
    "Generator",
    "JointGenerator",
    "JointModel",
    "JointSettings",
    "OnePassGenerator",
    "OnePassModel",
    "OnePassSettings",
    "T5Generator",
    "T5Model",
    "T5Settings",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Generator",
        "joint": "JointGenerator JointModel",
        "onepass": "OnePassGenerator OnePassModel",
        "t5": "T5Generator T5Model",
        "settings": "JointSettings OnePassSettings T5Settings",
    },
)
