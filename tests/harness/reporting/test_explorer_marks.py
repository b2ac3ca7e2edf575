"""What the translation explorer marks as different, in a browser."""

from __future__ import annotations

from pathlib import Path

import pages_factory
import pytest
from browser_view import launched, open_view
from record_factory import record

from harness.storage.run_store import Hypothesis

pytestmark = pytest.mark.browser
pytest.importorskip("playwright", reason="needs playwright: pip install '.[browser]'")


def test_a_space_before_punctuation_is_not_marked(tmp_path: Path) -> None:
    texts = {"learned_positions": "a ball.", "paper": "a ball ."}
    runs = [
        pages_factory.save_run(tmp_path, record(variant), [Hypothesis(0, tuple(text.split()), text)])
        for variant, text in texts.items()
    ]
    path = pages_factory.write(runs, tmp_path, results=tmp_path)
    with launched() as browser:
        part = open_view(browser, [], path).page.locator(".explorer[data-ready]").first
        part.wait_for()
        assert "a ball ." in part.locator(".sentences").inner_text()
        assert part.locator("ins, del").count() == 0
