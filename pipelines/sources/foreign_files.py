"""Reading other people's tab-separated files: encoding, header, columns and numbers are checked, bad lines kept aside."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from contracts.errors import BadInput


@dataclass
class Rejected:
    """Lines that were not taken, with the reason for each."""

    rows: list[dict[str, Any]] = field(default_factory=list)

    def add(self, file: str, line: int, reason: str, text: str) -> None:
        """`line` counts from 1, the header included."""
        self.rows.append({"file": file, "line": line, "reason": reason, "row": text})

    def reasons(self, file: str) -> dict[str, int]:
        """Reason -> lines of `file` that were rejected for it; the most frequent first."""
        return dict(Counter(row["reason"] for row in self.rows if row["file"] == file).most_common())

    def of_file(self, file: str, lines: int) -> dict[str, Any]:
        """For a report: lines read, kept, and rejected by reason."""
        bad = len({row["line"] for row in self.rows if row["file"] == file})
        return {"file": file, "read": lines, "kept": lines - bad, "rejected": self.reasons(file)}

    def check_share(self, file: str, lines: int, limit: float) -> None:
        """`BadInput`, with counts by reason, when more than `limit` (a share) of `file`'s `lines` were rejected."""
        bad = [row for row in self.rows if row["file"] == file]
        numbers = {row["line"] for row in bad}
        if len(numbers) > limit * lines:
            first = min(bad, key=lambda row: row["line"])
            reasons = ", ".join(f"{reason}: {count}" for reason, count in self.reasons(file).items())
            raise BadInput(
                f"{file}: {len(numbers)} of {lines} lines cannot be used, more than the limit of {limit:.1%} ({reasons}); "
                f"the first is line {first['line']}: {first['reason']}"
            )


@dataclass
class Columns:
    """A file's good lines: integer columns (N,), text columns as lists, and each row's line number."""

    file: str
    lines: int
    line_N: np.ndarray
    numbers: dict[str, np.ndarray]
    texts: dict[str, list[str]]

    def keep(self, kept_N: np.ndarray) -> "Columns":
        """Only the rows where `kept_N` (N,) is true."""
        texts = {name: [text for text, kept in zip(values, kept_N) if kept] for name, values in self.texts.items()}
        return Columns(
            self.file, self.lines, self.line_N[kept_N], {n: v[kept_N] for n, v in self.numbers.items()}, texts
        )

    def reject(self, bad_N: np.ndarray, reason: str, rejected: Rejected) -> "Columns":
        """Puts the rows where `bad_N` (N,) is true aside for `reason` and gives the rest."""
        if not bad_N.any():
            return self
        for at in np.flatnonzero(bad_N):
            row = [str(values[at]) for values in self.numbers.values()] + [text[at] for text in self.texts.values()]
            rejected.add(self.file, int(self.line_N[at]), reason, "\t".join(row))
        return self.keep(~bad_N)


def read_columns(
    folder: Path, name: str, header: Sequence[str], texts: Sequence[str], rejected: Rejected, limit: float
) -> Columns:
    """Reads a tab-separated file whose first line is `header`; columns not in `texts` are whole numbers.

    Lines with another number of columns or a broken number go to `rejected`. `BadInput` when the file is missing, is
    neither UTF-8 nor Latin-1 text, has another header, has no lines, or more than `limit` of its lines are bad.
    """
    lines = _decode(folder / name).split("\n")
    if lines and lines[-1] == "":
        lines.pop()
    found = lines[0].rstrip("\r").split("\t") if lines else []
    missing = [column for column in header if column not in found]
    if missing:
        raise BadInput(f"{folder / name}: line 1 lacks column {', '.join(missing)}; it has: {', '.join(found)}")
    if found != list(header):
        raise BadInput(f"{folder / name}: line 1 has columns {', '.join(found)}, not {', '.join(header)}")
    if len(lines) < 2:
        raise BadInput(f"{folder / name} has a header and no lines")
    whole = [column for column in header if column not in texts]
    good: list[list[str]] = []
    numbers: list[list[int]] = []
    line_numbers = []
    for line_number, line in enumerate(lines[1:], start=2):
        row = line.rstrip("\r").split("\t")
        if len(row) != len(header):
            rejected.add(name, line_number, f"{len(row)} columns instead of {len(header)}", line)
            continue
        record = dict(zip(header, row))
        try:
            numbers.append([_whole(record[column]) for column in whole])
        except ValueError as error:
            rejected.add(name, line_number, str(error), line)
            continue
        good.append([record[column] for column in texts])
        line_numbers.append(line_number)
    rejected.check_share(name, len(lines) - 1, limit)
    matrix = np.array(numbers, dtype=np.int64).reshape(len(numbers), len(whole))
    return Columns(
        name, len(lines) - 1, np.array(line_numbers, dtype=np.int64),
        {column: matrix[:, i] for i, column in enumerate(whole)},
        {column: [row[i] for row in good] for i, column in enumerate(texts)},
    )  # fmt: skip


def _whole(text: str) -> int:
    # int() alone would take "1_000", " 7" and digits of other scripts.
    if not (text.isascii() and text.isdigit()):
        raise ValueError(f"{text[:40]!r} is not a whole number")
    # Ids of tags become topics, which are int32; no number of these files comes near that.
    if len(text) > 10 or int(text) >= 2**31:
        raise ValueError(f"{text[:40]!r} is too large: numbers go up to {2**31 - 1}")
    return int(text)


def _decode(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    content = path.read_bytes()
    if b"\0" in content:
        line = content[: content.index(b"\0")].count(b"\n") + 1
        raise BadInput(f"{path}: line {line} holds a zero byte: this is not UTF-8 or Latin-1 text")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        pass
    for line_number, raw_line in enumerate(content.split(b"\n"), start=1):
        # Latin-1 takes any byte, but no Latin-1 text has the control characters 0x80-0x9f.
        if any(0x80 <= byte <= 0x9F for byte in raw_line):
            raise BadInput(f"{path}: line {line_number} is neither UTF-8 nor Latin-1 text")
    return content.decode("latin-1")
