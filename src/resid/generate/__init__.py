"""G-stage: generators write the next item's ID code by code; decoding turns their probabilities into items."""

from resid.generate.generators import OnePassGenerator, OnePassSettings, T5Generator, T5Settings

__all__ = ["OnePassGenerator", "OnePassSettings", "T5Generator", "T5Settings"]
