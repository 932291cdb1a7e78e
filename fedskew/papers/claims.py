"""What a suite judges: a sentence of its source, and the comparison it means."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from fedskew.papers.entries import Names, Part
from fedskew.papers.scores import CHEAPER, At, ScoreName, known_score


class Side(Part):
    """One side of a comparison: ``arm``, or ``arm:score`` to look at another score of it."""

    arm: str
    score: ScoreName


class Claim(Part):
    """A sentence of a source, and the comparison it means.

    ``kind`` "better" asks for a difference above ``margin``; "no-worse" for one above -margin;
    "above" compares nobody: the score of ``better`` itself has to lie above ``margin``.
    ``control`` names arms that lack the method's idea: what they gain too, it does not explain.
    ``beyond`` names a setting: then it is the difference less the one there that is asked for.
    A pattern of arms ("irm+*") has the mean score of the arms that are like it.

    All claims are judged at a selected round, by default the best on validation data, unless
    ``at_why`` says why not. Where ``better`` is not what the source describes, ``ours`` says what
    it is, and ``letter`` names the claim that judges the source to the letter.
    """

    name: str
    says: str
    source: str
    better: str
    than: Names = Field([], description="arms it is compared with; none for 'above'")
    on: list[str]
    beyond: str | None = None
    control: Names = Field([], description="arms without the method's idea")
    why: str = Field("", description="what the control would show")
    score: ScoreName = "clients"
    at: At = "selected"
    at_why: str = Field("", description="why a round is judged that nobody selected")
    kind: Literal["better", "no-worse", "above"] = "better"
    margin: Annotated[float, Field(ge=0)] = 0.0
    target: float | None = Field(None, description="what score 'rounds' has to reach")
    floor: float | None = Field(
        None, description="what the mean score of 'better' has to reach before anything is judged"
    )
    ours: str = Field("", description="what is judged in place of what the source describes")
    letter: str = Field("", description="the claim that judges the source to the letter")

    @model_validator(mode="after")
    def _check(self) -> Claim:
        if (self.score == "rounds") != (self.target is not None):
            raise ValueError("score 'rounds' and a target go together")
        if self.kind == "above" and (self.than or self.control or self.beyond):
            raise ValueError("kind 'above' is about one arm: leave out than, control and beyond")
        if self.kind != "above" and not self.than:
            raise ValueError(f"kind {self.kind!r} compares arms: name the others in than")
        if (self.at == "last" or isinstance(self.at, int)) and not self.at_why:
            raise ValueError("a claim about a round nobody selected says why, in at_why")
        if bool(self.ours) != bool(self.letter):
            raise ValueError("ours and letter go together: a variant stands beside its source")
        if self.beyond in self.on:
            raise ValueError(f"beyond {self.beyond!r} stands in on too: take it out of one of them")
        asked = [self.side(name).score for name in (self.better, *self.than, *self.control)]
        if CHEAPER in asked and self.kind != "above":
            raise ValueError(f"score {CHEAPER!r} compares arms by itself: set kind to 'above'")
        return self

    def side(self, reference: str) -> Side:
        """The arm and the score a reference means: "fedavg" or "fedavg:fine-tuned"."""
        arm, colon, score = reference.partition(":")
        return Side(arm=arm, score=known_score(score) if colon else self.score)
