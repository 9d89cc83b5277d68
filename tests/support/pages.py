"""Pages of the documentation, and the code in them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass(frozen=True)
class Page:
    """A page in Markdown."""

    path: Path

    @property
    def text(self) -> str:
        return self.path.read_text(encoding="utf-8")

    def blocks(self, language: str) -> list[str]:
        """Its blocks of code in a language, in order."""
        return [code for name, code in _FENCE.findall(self.text) if name == language]

    def block(self, language: str, part: str) -> str:
        """The only block of the language that contains a text."""
        [found] = [code for code in self.blocks(language) if part in code]
        return found

    def prose(self) -> str:
        """What is not code."""
        return _FENCE.sub("", self.text)
