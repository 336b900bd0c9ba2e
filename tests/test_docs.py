"""What the documentation says is true."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])
NEED_A_PASTE = {ROOT / "docs" / "topology.md"}
"""Pages whose examples start from a file, which their own test gives them."""


@pytest.mark.parametrize("page", sorted({*PAGES} - NEED_A_PASTE), ids=lambda page: str(page.relative_to(ROOT)))
def test_examples_give_what_they_show(page: Path) -> None:
    """Every `>>>` line of the documentation is executed."""
    failures, _ = doctest.testfile(str(page), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert failures == 0


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    """Every relative link names a file that is there."""
    targets = re.findall(r"\]\((?!https?:|#)([^)#]+)", page.read_text())
    missing = [target for target in targets if not (page.parent / target).exists()]
    assert missing == []


def test_the_quick_start_is_two_commands() -> None:
    """The README's first block is exactly `make run` and `make test`."""
    block = re.search(r"```sh\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert block is not None
    assert block[1].split("\n") == ["make run", "make test", ""]
