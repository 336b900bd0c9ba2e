"""The report of a load or link test, told from its content."""

from service.catalogue.importers.benchmark import FORMATS, BenchmarkRow, FormatNotUnderstood, read_benchmark
from service.catalogue.importers.nccl import LinkTest, TableNotUnderstood, has_table, read_link_tests

MAX_TESTS = 2000
"""More tests than this in one report are refused."""

REPORTS = (*FORMATS, "nccl-tests or rccl-tests")


class ReportNotUnderstood(ValueError):
    """The text is no known report, or one that is mangled."""


def read_report(text: str) -> tuple[BenchmarkRow, ...] | tuple[LinkTest, ...]:
    """Every test of a report, in the order of the text: at least one, all of loads or all of links.

    Raises
    ------
    ReportNotUnderstood
        It is none of `REPORTS`, or more than `MAX_TESTS`; the message says what was found.
    """
    try:
        tests = read_link_tests(text) if has_table(text) else read_benchmark(text)
    except TableNotUnderstood as error:
        raise ReportNotUnderstood(str(error)) from None
    except FormatNotUnderstood as error:
        hint = "" if "looked for" in str(error) else f"; understood are {', '.join(REPORTS)}"
        raise ReportNotUnderstood(f"{error}{hint}") from None
    if len(tests) > MAX_TESTS:
        raise ReportNotUnderstood(f"there are more than {MAX_TESTS:,} tests; give fewer at a time")
    return tests
