"""Results of long runs: one JSON line each, appended when it is known and never changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

__all__ = ["Record", "RecordFile", "matches"]

Record = dict[str, Any]


class RecordFile:
    """A file of JSON lines that survives interruptions.

    Args:
        path: created, with its folder, at the first `append`.

    Example:
        >>> import tempfile
        >>> file = RecordFile(Path(tempfile.mkdtemp()) / "results.jsonl")
        >>> file.append({"method": "qfr", "seed": 0, "crps": 0.2})
        >>> file.find(method="qfr", seed=0)["crps"], file.find(method="qfr", seed=1)
        (0.2, None)
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)

    def read(self) -> list[Record]:
        """All records; a line that a crash cut off is left out."""
        records = []
        lines = self.path.read_text().splitlines() if self.path.exists() else []
        for line in lines:
            try:
                record = json.loads(line)
            except json.JSONDecodeError:
                continue
            if isinstance(record, dict):
                records.append(record)
        return records

    def find(self, **key: Any) -> Record | None:
        """The last record with these entries, or None."""
        return next((r for r in reversed(self.read()) if matches(r, key)), None)

    def append(self, record: Record) -> None:
        """Add a record; a line that was cut off before is ended first."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a+b") as file:
            if file.tell() > 0:
                file.seek(-1, 2)
                if file.read(1) != b"\n":
                    file.write(b"\n")
            file.write(json.dumps(record).encode() + b"\n")


def matches(record: Record, key: Record) -> bool:
    """Whether a record has all entries of `key`.

    Example:
        >>> matches({"seed": 1, "crps": 0.2}, {"seed": 1})
        True
    """
    return all(record.get(name) == value for name, value in key.items())
