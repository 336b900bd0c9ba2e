"""The example of docs/topology.md."""

import doctest
import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "topology.md"


def test_example_in_the_documentation_is_true() -> None:
    """Run on the matrix printed above it, the example gives what it says."""
    page = PAGE.read_text(encoding="utf-8")
    [matrix] = re.findall(r"```\n(\s+GPU0.*?)```", page, re.DOTALL)
    [example] = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    test = doctest.DocTestParser().get_doctest(example, {"text": matrix}, "docs/topology.md", str(PAGE), 0)
    assert test.examples
    assert doctest.DocTestRunner().run(test).failed == 0
