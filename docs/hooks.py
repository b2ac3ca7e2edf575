"""Hooks of the documentation's website: it contains the files outside `docs/` that pages link to, and no dead links."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any
from urllib.parse import unquote

ROOT = Path(__file__).parent.parent
COPIED = ("SECURITY.md", "examples", "reports/published")


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Link to the HTML form of reports, and not to the records, which the website does not contain."""
    markdown = re.sub(r"\]\((\.\./reports/[^)]*)index\.md\)", r"](\1index.html)", markdown)
    return re.sub(r"\[([^\]]*)\]\(\.\./results/[^)]*\)", r"\1", markdown)


def on_post_build(config: Any, **_: Any) -> None:
    """Copy the files outside `docs/`, and check every link of the pages."""
    site = Path(config["site_dir"])
    for name in COPIED:
        (site / name).parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, site / name, dirs_exist_ok=True)
        else:
            shutil.copy(ROOT / name, site / name)
    dead = [
        f"{page.relative_to(site)}: {link}"
        for page in site.rglob("*.html")
        if page.name != "404.html"
        for link in re.findall(r'href="([^"#?:]+)["#?]', page.read_text(encoding="utf-8"))
        if not (page.parent / unquote(link)).exists()
    ]
    if dead:
        raise SystemExit("Links to missing files:\n" + "\n".join(dead))
