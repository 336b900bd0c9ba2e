"""Results of load tests, of whichever tool, read into rows.

The format is told from the content: vLLM's `bench serve` (JSON or console table), GuideLLM, GenAI-Perf and AIPerf, the
rows and reports of llm-d, and our own rows in CSV or JSON.
"""

import csv
import io
import json
from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from service.catalogue.importers.benchmark import genai_perf, guidellm, llm_d, own, vllm
from service.catalogue.importers.benchmark.fields import Json, items, mapping
from service.catalogue.importers.benchmark.row import MEANING, BenchmarkRow, FormatNotUnderstood

__all__ = ["FORMATS", "MEANING", "BenchmarkRow", "FormatNotUnderstood", "read_benchmark"]

FORMATS = (vllm.NAME, guidellm.NAME, genai_perf.NAME, llm_d.NAME, own.NAME)
"""The formats that are looked for, in this order."""

MAX_ROWS = 20_000
"""More rows than this are refused."""

_READERS: tuple[tuple[Callable[[Json], bool], Callable[[Json], Iterator[BenchmarkRow]]], ...] = (
    (genai_perf.is_export, lambda document: iter((genai_perf.read(document),))),
    (vllm.is_result, lambda document: iter((vllm.read_json(document),))),
    (guidellm.is_report, guidellm.read),
    (llm_d.is_planner_file, llm_d.read_planner_file),
    (llm_d.is_planner_row, lambda document: iter((llm_d.read_planner_row(document),))),
    (llm_d.is_report, lambda document: iter((llm_d.read_report(document),))),
    (own.is_row, lambda document: iter((own.read_row(document),))),
)
_KNOWN_OTHERS = (
    ({"avg_latency", "latencies"}, "a result of `vllm bench latency`: one offline batch, not a load test"),
    ({"elapsed_time", "tokens_per_second"}, "a result of `vllm bench throughput`: offline, without times of requests"),
    ({"experiments", "version"}, "raw requests of Perf Analyzer; give the export `profile_export_genai_perf.json`"),
)


def read_benchmark(text: str) -> tuple[BenchmarkRow, ...]:
    """Read the load tests in a text.

    Parameters
    ----------
    text : str
        A result file or a paste: JSON, JSON lines, CSV, or the console's table.

    Returns
    -------
    tuple of BenchmarkRow
        At least one row, in the order of the text.

    Raises
    ------
    FormatNotUnderstood
        It is none of `FORMATS`, or one of them in a shape that holds no load test; the message says what was found.
    """
    stripped = text.lstrip("\ufeff \t\r\n")
    rows = tuple(islice(_rows(stripped), MAX_ROWS + 1))
    if len(rows) > MAX_ROWS:
        raise FormatNotUnderstood(f"there are more than {MAX_ROWS:,} load tests; give fewer at a time", FORMATS)
    if not rows:
        raise FormatNotUnderstood(f"no load test was found; looked for {', '.join(FORMATS)}", FORMATS)
    return rows


def _rows(text: str) -> Iterator[BenchmarkRow]:
    if text.startswith(("{", "[")):
        documents = _documents(text)
        if documents is not None:
            for document in documents:
                yield from _read(document)
            return
    if vllm.has_table(text):
        yield from vllm.read_tables(text)
        return
    yield from _from_csv(text)


def _documents(text: str) -> Sequence[object] | None:
    """The objects of a JSON text or of JSON lines; None for neither.

    Raises
    ------
    FormatNotUnderstood
        The JSON is cut off or damaged.
    """
    try:
        document: object = json.loads(text)
    except (ValueError, RecursionError) as broken:
        lines = [line for line in text.splitlines() if line.strip()]
        try:
            return [json.loads(line) for line in lines] if len(lines) > 1 else _refuse_broken(text, broken)
        except (ValueError, RecursionError):
            return _refuse_broken(text, broken)
    return items(document) or [document]


def _refuse_broken(text: str, broken: Exception) -> None:
    if vllm.has_table(text):
        return
    raise FormatNotUnderstood(f"the JSON cannot be read: {broken}", FORMATS) from broken


def _read(value: object) -> Iterator[BenchmarkRow]:
    document = mapping(value)
    if document is None:
        raise FormatNotUnderstood(f"a JSON object is needed for each load test, not {type(value).__name__}", FORMATS)
    for recognises, read in _READERS:
        if recognises(document):
            yield from read(document)
            return
    for keys, what in _KNOWN_OTHERS:
        if keys <= document.keys():
            raise FormatNotUnderstood(f"this is {what}", FORMATS)
    keys = ", ".join(sorted(map(str, document))[:8])
    raise FormatNotUnderstood(
        f"the JSON object with the keys {keys} is no known result; looked for {', '.join(FORMATS)}", FORMATS
    )


def _from_csv(text: str) -> Iterator[BenchmarkRow]:
    header = text.split("\n", 1)[0].strip()
    if "," not in header:
        return
    try:
        reader = csv.DictReader(io.StringIO(text), strict=True)
        for line, record in enumerate(reader, start=2):
            if None in record or None in record.values():
                raise FormatNotUnderstood(f"row {line} of the CSV has not as many cells as the header", FORMATS)
            found = {name.strip(): cell for name, cell in record.items()}
            if llm_d.is_planner_row(found):
                yield llm_d.read_planner_row(found)
            elif own.is_row(found):
                yield own.read_row(found)
            else:
                return
    except csv.Error as broken:
        raise FormatNotUnderstood(f"the CSV cannot be read: {broken}", FORMATS) from broken
