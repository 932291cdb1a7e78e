"""What was exported, as it is printed."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fedskew.deploy.loading import OneFile
from fedskew.deploy.measured import Variant

NOTHING = "–"


@dataclass(frozen=True)
class ExportReport:
    """What was exported; printed as a table, and how each file is loaded elsewhere."""

    folder: Path
    client: str | None
    tested: int
    variants: tuple[Variant, ...]
    notes: tuple[str, ...] = ()
    files: tuple[OneFile, ...] = ()

    def __str__(self) -> str:
        whom = f"client {self.client!r}" if self.client else "all clients, the mean of theirs"
        lines = [*self._table(), ""] if self.variants else []
        if self.tested and self.variants:
            what = "error" if self.variants[0].error is not None else "accuracy"
            lines.append(
                f"{what} on {self.tested} test samples of {whom}; written to {self.folder}"
            )
        lines += [f"note: {note}" for note in self.notes]
        return "\n".join([*lines, *(str(file) for file in self.files)])

    def _table(self) -> list[str]:
        is_number = self.variants[0].error is not None
        header = ("variant", "parameters", "zeros", "bytes", "gzipped",
                  "error" if is_number else "accuracy", "as float", "ms", "file")  # fmt: skip
        rows = [header] + [
            (v.name, f"{v.parameters:,}", f"{v.zeros / v.parameters:.0%}", f"{v.bytes:,}",
             f"{v.gzipped:,}", _number(v.error if is_number else v.accuracy, 4),
             _number(v.agrees, 4), _number(v.milliseconds, 2), v.file or NOTHING)
            for v in self.variants
        ]  # fmt: skip
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        return [
            "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
            for row in rows
        ]


def _number(value: float | None, digits: int) -> str:
    return NOTHING if value is None else f"{value:.{digits}f}"
