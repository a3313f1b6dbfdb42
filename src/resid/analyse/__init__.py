"""The paper's analyses, one per file: each gives a figure, the numbers behind it, and the main number in a sentence.

Those of finished runs take their folders; those that train take a Dataset and keep their stages in a run.
"""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.analyse.attention import analyse_attention
    from resid.analyse.branching import analyse_branching
    from resid.analyse.density import analyse_density
    from resid.analyse.diagnostics import analyse_diagnostics
    from resid.analyse.embeddings import analyse_embeddings
    from resid.analyse.finding import Finding
    from resid.analyse.overlap import analyse_overlap
    from resid.analyse.quantizers import analyse_quantizers
    from resid.analyse.scaling import analyse_scaling
    from resid.analyse.tsne import analyse_tsne

__all__ = [
    "Finding",
    "analyse_attention",
    "analyse_branching",
    "analyse_density",
    "analyse_diagnostics",
    "analyse_embeddings",
    "analyse_overlap",
    "analyse_quantizers",
    "analyse_scaling",
    "analyse_tsne",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "attention": "analyse_attention",
        "branching": "analyse_branching",
        "density": "analyse_density",
        "diagnostics": "analyse_diagnostics",
        "embeddings": "analyse_embeddings",
        "finding": "Finding",
        "overlap": "analyse_overlap",
        "quantizers": "analyse_quantizers",
        "scaling": "analyse_scaling",
        "tsne": "analyse_tsne",
    },
)
