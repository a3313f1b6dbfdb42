"""A reference decoder of an exported generator, for systems without PyTorch; it needs onnxruntime and NumPy only.

Beam search over the tree of the items' IDs, as in `resid`: at every level the most probable prefixes that lead to an item are
kept. A joint generator re-ranks the items that they end at by a weighted sum of scores.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

PADDING = -1


class Decoder:
    """Recommends items.

    Parameters
    ----------
    folder
        What ``resid export --format onnx`` wrote.

    Attributes
    ----------
    item_ids : ndarray, shape (items,)
    codes : ndarray, shape (items, levels)
        The semantic IDs of the items.
    """

    def __init__(self, folder: str | Path) -> None:
        folder = Path(folder)
        self.facts: dict[str, Any] = json.loads((folder / "decode.json").read_text(encoding="utf-8"))
        with np.load(folder / "tables.npz", allow_pickle=False) as tables:
            self.tables = {name: tables[name] for name in tables.files}
        self.item_ids, self.codes = self.tables["item_ids"], self.tables["codes"]
        self._index = {item: index for index, item in enumerate(self.item_ids.tolist())}
        self._history = _session(folder / "history.onnx")
        self._levels = [_session(folder / f"level{level}.onnx") for level in range(2, self.codes.shape[1] + 1)]
        self._popular = np.argsort(-self.tables["counts"], kind="stable")  # items with one ID: most popular first
        self._build_tree()

    def _build_tree(self) -> None:
        """Build the tree: prefixes of every length are numbered in lexicographic order, so that children are consecutive."""
        codes, sizes = self.codes[self._popular].astype(np.int64), self.facts["level_sizes"]
        node = np.zeros(len(codes), dtype=np.int64)
        shown = self.tables["recommendable"][self._popular]  # not withdrawn
        self._keys, self._leads = [], []  # of every level: parent · size + code, ascending; and which lead to an item
        for level, size in enumerate(sizes):
            keys, node = np.unique(node * size + codes[:, level], return_inverse=True)
            self._keys.append(keys)
            self._leads.append(np.isin(np.arange(len(keys)), node[shown]))
        order = np.argsort(node[shown], kind="stable")
        self._items, leaves = self._popular[shown][order], np.arange(len(self._keys[-1]) + 1)
        self._first = np.searchsorted(node[shown][order], leaves)

    def recommend(self, histories: Sequence[Sequence[Any]], k: int = 10) -> tuple[np.ndarray, np.ndarray]:
        """Return the k best items after each history, best first.

        Parameters
        ----------
        histories
            Item ids, oldest first; unknown ones are skipped, and one must be known.
        k
            Number of items.

        Returns
        -------
        items, scores
            Item ids and scores, shape (users, k); None and -inf where there are fewer items.
        """
        items = np.full((len(histories), k), None, dtype=object)
        scores = np.full((len(histories), k), -np.inf, dtype=np.float32)
        for user, history in enumerate(histories):
            known = [self._index[item] for item in history if item in self._index][-self.facts["max_history"] :]
            if not known:
                raise ValueError(f"the history of user {user} has no known item")
            found, values = self._rank(np.array([known], dtype=np.int64), k)
            items[user, : len(found)], scores[user, : len(found)] = self.item_ids[found].tolist(), values
        return items, scores

    def _rank(self, history: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the best items after one history, shape (1, length), and their scores."""
        names = [output.name for output in self._history.get_outputs()]
        read = dict(zip(names, self._history.run(None, {"histories": history}), strict=True))
        found, values = self._search(read["state"], read["log_probs"], max(k, self.facts["beam_size"]))
        if self.facts["blend"] is not None:
            values = self._blend(history[0], found, values, read)
        best = np.argsort(-values, kind="stable")[:k]
        return found[best], values[best]

    def _search(self, state: np.ndarray, log_probs: np.ndarray, beam_size: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the items that the best prefixes lead to, and the log-probabilities of their IDs.

        `state` and `log_probs` are those of the first level, shapes (1, width) and (1, codes).
        """
        nodes, codes, scores = np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.float32)
        for level in range(self.codes.shape[1]):
            if level:
                inputs = {"state": state, "nodes": nodes, "codes": codes}
                log_probs, state = self._levels[level - 1].run(None, inputs)  # (beams, codes), (beams, width)
            keys, size = self._keys[level], self.facts["level_sizes"][level]
            children = np.searchsorted(keys, nodes * size), np.searchsorted(keys, (nodes + 1) * size)
            beam = np.repeat(np.arange(len(nodes)), children[1] - children[0])
            child = np.concatenate([np.arange(first, last) for first, last in zip(*children, strict=True)])
            beam, child = beam[self._leads[level][child]], child[self._leads[level][child]]
            code = keys[child] % size
            values = scores[beam] + log_probs[beam, code]
            best = np.argsort(-values, kind="stable")[:beam_size]
            nodes, codes, scores, state = child[best], code[best], values[best], state[beam[best]]
        counts = self._first[nodes + 1] - self._first[nodes]
        slots = np.concatenate([np.arange(self._first[node], self._first[node + 1]) for node in nodes])
        return self._items[slots][:beam_size], np.repeat(scores, counts)[:beam_size]

    def _blend(
        self, history: np.ndarray, items: np.ndarray, codes: np.ndarray, queries: dict[str, np.ndarray]
    ) -> np.ndarray:
        """Return the weighted sum of the scores of items."""
        weights = self.facts["blend"]
        total = weights["codes"] * codes + weights["seen"] * np.isin(items, history)
        for name in ("item", "encoder"):
            if f"{name}_vectors" in self.tables:
                total = total + weights[name] * (self.tables[f"{name}_vectors"][items] @ queries[f"{name}_query"][0])
        if "cooccurrence" in self.facts:
            total = total + weights["cooccurrence"] * self._cooccurrence(history, items)
        blended: np.ndarray = total.astype(np.float32)
        return blended

    def _cooccurrence(self, history: np.ndarray, items: np.ndarray) -> np.ndarray:
        """Return the logarithm of the co-occurrence of items with the last items of a history."""
        facts, found = self.facts["cooccurrence"], np.zeros(len(self.codes), dtype=np.float64)
        data, indices, begin = (self.tables[f"cooccurrence_{name}"] for name in ("data", "indices", "indptr"))
        for age, item in enumerate(history[::-1][: facts["n_recent"]]):
            row = slice(begin[item], begin[item + 1])
            np.add.at(found, indices[row], facts["decay"] ** age * data[row])
        logarithms: np.ndarray = np.log(found[items].astype(np.float32) + np.float32(facts["floor"]))
        return logarithms


def _session(path: Path) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
