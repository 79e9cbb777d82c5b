"""Pages of the site that live elsewhere in the repository, so that their links work both there and here."""

from __future__ import annotations

import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    guide = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8").replace("](docs/", "](")
    example = (ROOT / "examples" / "own_reward.py").read_text(encoding="utf-8")
    files.append(File.generated(config, "contributing.md", content=guide))
    files.append(File.generated(config, "example.md", content=f"# A complete script\n\n```python\n{example}```\n"))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    markdown = markdown.replace("](../CONTRIBUTING.md", "](contributing.md")
    markdown = markdown.replace("](../examples/own_reward.py", "](example.md")
    # Other files and folders of the repository have no page: their link becomes code.
    return re.sub(r"\[`?([^\]`]+)`?\]\(\.\./[\w./#-]+\)", r"`\1`", markdown)
