"""Words as they are into an ONNX graph: what makes numbers of them is put before it.

The graph then has two inputs, "inputs" for the columns of numbers and "words" for those of words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedskew.data.tables.cells import MISSING
from fedskew.data.tables.encoder import BUCKETS, Encoding, TableEncoder, hashed
from fedskew.data.tables.kinds import WORDS

CODED = "coded"
MAKERS = "com.microsoft"
"""Whose operators count the hash: onnxruntime has them, other programs may not."""
STRANGE = "\N{REPLACEMENT CHARACTER}"
"""A word that no training row held."""
Array = NDArray[Any]


def places_of_words(encoder: TableEncoder | None) -> list[int]:
    """The columns that hold words."""
    columns = encoder.columns if encoder else ()
    return [place for place, column in enumerate(columns) if column.kind in WORDS]


def taking_words(proto: Any, encoder: TableEncoder) -> Any:
    """The same graph, which takes words where it took their numbers."""
    from onnx import TensorProto, helper

    graph, words = proto.graph, places_of_words(encoder)
    numbers = [place for place in range(len(encoder.columns)) if place not in words]
    made = _Nodes()
    parts = [made.of_word(encoder.columns[w], number) for number, w in enumerate(words)]
    parts = ["inputs", *parts] if numbers else parts
    side_by_side = made.add("Concat", parts, axis=1)
    order = np.argsort([*numbers, *words])
    made.add("Gather", [side_by_side, made.constant(order)], axis=1, name=CODED)
    for node in graph.node:
        for place, name in enumerate(node.input):
            if name == "inputs":
                node.input[place] = CODED
    given = [("inputs", TensorProto.FLOAT, len(numbers)), ("words", TensorProto.STRING, len(words))]
    inputs = [
        helper.make_tensor_value_info(n, t, ["rows", width]) for n, t, width in given if width
    ]
    whole = helper.make_graph(
        [*made.nodes, *graph.node], graph.name, inputs, list(graph.output),
        initializer=[*made.constants, *graph.initializer], value_info=list(graph.value_info),
    )  # fmt: skip
    used = {each.domain: each.version for each in proto.opset_import} | {"ai.onnx.ml": 3}
    if any(not encoder.columns[place].levels for place in words):
        used[MAKERS] = 1
    opsets = [helper.make_opsetid(domain, version) for domain, version in used.items()]
    return helper.make_model(
        whole, opset_imports=opsets, ir_version=proto.ir_version, functions=list(proto.functions),
        producer_name=proto.producer_name, producer_version=proto.producer_version,
    )  # fmt: skip


class _Nodes:
    """Nodes and constants of a graph, with names of their own."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []
        self.constants: list[Any] = []

    def constant(self, values: Any) -> str:
        from onnx import numpy_helper

        name = f"words/constant {len(self.constants)}"
        self.constants.append(numpy_helper.from_array(np.asarray(values), name))
        return name

    def add(self, kind: str, inputs: Sequence[str], domain: str = "", name: str = "",
            **how: Any) -> str:  # fmt: skip
        from onnx import helper

        name = name or f"words/{kind} {len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name, domain=domain, **how))
        return name

    def of_word(self, column: Encoding, number: int) -> str:
        """[rows, 1]: the number of each word, -1 of a strange one, NaN where there is none."""
        words = self.add("Gather", ["words", self.constant([number])], axis=1)
        nothing = sorted({each for word in MISSING for each in
                          (word, word.upper(), word.capitalize(), word.title())})  # fmt: skip
        if column.levels:
            codes = {**dict.fromkeys(nothing, np.nan),
                     **{word: float(code) for code, word in enumerate(column.levels)}}  # fmt: skip
            return self._looked_up(words, codes, -1.0)
        gone = self._looked_up(words, dict.fromkeys(nothing, 1.0), 0.0)
        numbers = self.add("MurmurHash3", [words], domain=MAKERS, seed=0, positive=0)
        whole = self.add("Abs", [self._cast(numbers, np.int64(0))])
        bucket = self._cast(self.add("Mod", [whole, self.constant(BUCKETS)]), np.float32(0))
        is_gone = self.add("Greater", [gone, self.constant(np.float32(0.5))])
        return self.add("Where", [is_gone, self.constant(np.float32(np.nan)), bucket])

    def _looked_up(self, words: str, codes: dict[str, float], otherwise: float) -> str:
        return self.add(
            "LabelEncoder", [words], domain="ai.onnx.ml", default_float=otherwise,
            keys_strings=list(codes), values_floats=list(codes.values()),
        )  # fmt: skip

    def _cast(self, values: str, like: Any) -> str:
        from onnx import helper

        return self.add("Cast", [values], to=helper.np_dtype_to_tensor_dtype(np.dtype(like.dtype)))


def as_words(encoder: TableEncoder, coded: Array) -> dict[str, Array]:
    """What such a graph is given, in place of rows in which words are numbers."""
    places = places_of_words(encoder)
    numbers = [place for place in range(len(encoder.columns)) if place not in places]
    words = [_words(encoder.columns[place], coded[:, place]) for place in places]
    given = {"inputs": np.ascontiguousarray(coded[:, numbers])} if numbers else {}
    return {**given, "words": np.stack(words, axis=1)}


def _words(column: Encoding, codes: Array) -> Array:
    """Words that have these numbers."""
    of_code = dict(enumerate(column.levels)) or _hashed_to()
    found = ["" if np.isnan(code) else of_code.get(int(code), STRANGE) for code in codes]
    return np.array(found, dtype=object)


def _hashed_to() -> dict[int, str]:
    """By place, a word that is hashed to it."""
    words = [str(number) for number in range(BUCKETS * BUCKETS)]
    return dict(zip(hashed(words).argmax(axis=1).tolist(), words, strict=True))
