"""Learning curves: whose line looks how."""

from __future__ import annotations

from fedskew.views.learning import method_styles


def test_references_keep_their_colours_and_no_two_methods_look_alike() -> None:
    names = ["local", *(f"method-{i}" for i in range(16)), "central"]
    chosen = method_styles(names)
    assert len(set(chosen)) == len(names)
    assert chosen[0] == method_styles(["local"])[0]
    assert chosen[-1] == method_styles(["central"])[0]
