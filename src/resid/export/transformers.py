"""Export to a folder of `transformers`: the T5, and the tables from IDs to items and to tokens."""

from pathlib import Path

import polars as pl

from resid.core.errors import InputError
from resid.generate.t5 import T5Generator
from resid.recommend.base import Recommender


def write_transformers(model: Recommender, folder: Path) -> str:
    """Write the files to a folder that exists; return what the model card says about their use.

    Raises
    ------
    InputError
        If it is another model, reads item embeddings, or `transformers` is missing.
    """
    if not isinstance(model, T5Generator):
        raise InputError(
            f"a {type(model).__name__} cannot be exported to transformers; use a T5 (recipes resid-t5 and resid-paper)."
        )
    model.to_transformers().save_pretrained(folder)
    offsets = model.model_.offsets.tolist()
    tokens = {f"t{level + 1}": pl.col(f"c{level + 1}") + offset for level, offset in enumerate(offsets)}
    model.semantic_ids.with_columns(**tokens).write_parquet(folder / "ids.parquet")
    model.catalogue_.items.write_parquet(folder / "items.parquet")
    return _USE.format(longest=model.catalogue_.max_history, beam_size=model.settings.beam_size, levels=len(offsets))


_USE = """`ids.parquet` has the semantic ID of every item (c1, c2, …) and its tokens (t1, t2, …); token 0 is padding and starts the
decoder. A history is the tokens of its last {longest} items, oldest first. In this folder:

```python
import polars as pl
import torch
from transformers import T5ForConditionalGeneration

model = T5ForConditionalGeneration.from_pretrained(".").eval()
ids = pl.read_parquet("ids.parquet")
tokens = ids.select(pl.col("^t[0-9]+$")).rows()  # of every item
item_of = dict(zip(tokens, ids["item"]))
children = {{}}  # the tokens that follow a prefix
for row in tokens:
    for level in range(len(row)):
        children.setdefault(row[:level], set()).add(row[level])

history = [token for row in tokens[:3] for token in row]  # three items
found = model.generate(
    torch.tensor([history]),
    max_new_tokens={levels},
    num_beams={beam_size},
    num_return_sequences=10,
    length_penalty=0.0,
    prefix_allowed_tokens_fn=lambda _, prefix: sorted(children[tuple(prefix[1:].tolist())]),
    return_dict_in_generate=True,
    output_scores=True,
)
items = [item_of[tuple(row[1:].tolist())] for row in found.sequences]
scores = found.sequences_scores.tolist()
```
"""
