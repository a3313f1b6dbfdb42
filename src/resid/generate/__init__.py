"""G-stage: generators predict the next item's ID code by code; decoding turns their probabilities into items."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.generate.base import Generator
    from resid.generate.joint import JointGenerator, JointModel
    from resid.generate.onepass import OnePassGenerator, OnePassModel
    from resid.generate.paired import PairedGenerators
    from resid.generate.settings import JointSettings, OnePassSettings, SummarySettings, T5Settings, TwoStreamSettings
    from resid.generate.summary import SummaryT5Model
    from resid.generate.t5 import T5Generator, T5Model
    from resid.generate.two_streams import TwoStreamGenerator, TwoStreamModel

__all__ = [
    "Generator",
    "JointGenerator",
    "JointModel",
    "JointSettings",
    "OnePassGenerator",
    "OnePassModel",
    "OnePassSettings",
    "PairedGenerators",
    "SummarySettings",
    "SummaryT5Model",
    "T5Generator",
    "T5Model",
    "T5Settings",
    "TwoStreamGenerator",
    "TwoStreamModel",
    "TwoStreamSettings",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Generator",
        "joint": "JointGenerator JointModel",
        "onepass": "OnePassGenerator OnePassModel",
        "paired": "PairedGenerators",
        "summary": "SummaryT5Model",
        "t5": "T5Generator T5Model",
        "two_streams": "TwoStreamGenerator TwoStreamModel",
        "settings": "JointSettings OnePassSettings SummarySettings T5Settings TwoStreamSettings",
    },
)
