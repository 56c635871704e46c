"""Finished work as lines of JSON, only ever appended to."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Ledger:
    """A file with one JSON object per line, each under the name and fingerprint of its work.

    A line that an interruption cut off is skipped, and so are lines of other fingerprints. Of
    several lines with the same name the last one counts.

    Attributes:
        path: The file.
        fingerprint: Of everything that results depend on.

    Example:
        >>> import tempfile
        >>> ledger = Ledger(Path(tempfile.mkdtemp()) / "results.jsonl", "abc")
        >>> ledger.append("one", {"crps": 2.5})
        >>> ledger.entries()["one"]["crps"], "two" in ledger.entries()
        (2.5, False)
    """

    path: Path
    fingerprint: str

    def entries(self) -> dict[str, dict[str, Any]]:
        """All finished work by name."""
        if not self.path.is_file():
            return {}
        found = {}
        for line in self.path.read_text().splitlines():
            try:
                entry = json.loads(line)
            except json.JSONDecodeError:
                continue
            if entry.get("fingerprint") == self.fingerprint:
                found[entry["name"]] = entry
        return found

    def append(self, name: str, content: dict[str, Any]) -> None:
        """Add a line."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        line = json.dumps({"name": name, "fingerprint": self.fingerprint, **content})
        whole = not self.path.is_file() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(("" if whole else "\n") + line + "\n")
