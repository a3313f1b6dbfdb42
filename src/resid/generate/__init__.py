"""G-stage: generators predict the next item's ID code by code; decoding turns their probabilities into items."""

from resid.generate.base import Generator
from resid.generate.joint import JointGenerator, JointModel, JointSettings
from resid.generate.onepass import OnePassGenerator, OnePassModel, OnePassSettings
from resid.generate.paired import PairedGenerators
from resid.generate.summary import SummarySettings, SummaryT5Model
from resid.generate.t5 import T5Generator, T5Model, T5Settings
from resid.generate.two_streams import TwoStreamGenerator, TwoStreamModel, TwoStreamSettings

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
