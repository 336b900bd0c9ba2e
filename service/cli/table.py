"""A plan as a table."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from rich import box
from rich.table import Table

from service.sizing.quantities import GIB

if TYPE_CHECKING:
    from service.catalogue.importers.outcome import ImportReport
    from service.storage.observations import Stored

MOST_REJECTIONS = 12


def plan_table(answer: Mapping[str, Any]) -> Table:
    """The recommended plan of an answer to `/plan`, or why there is none."""
    plan = answer["recommended"]
    if plan is None:
        table = Table(
            "GPU", "GPUs", "Why not", "Fix", title=f"No plan serves {answer['model']['name']}", box=box.SIMPLE
        )
        for rejection in answer["rejected"][:MOST_REJECTIONS]:
            count = rejection["gpu_count"]
            table.add_row(rejection["gpu"], str(count or ""), rejection["message"], rejection["fix"] or "")
        return table
    title = f"{answer['model']['name']} on {plan['gpu_count']} x {plan['gpu']}"
    table = Table(title=title, box=box.SIMPLE_HEAD, show_header=False, title_justify="left")
    table.add_column(no_wrap=True)
    table.add_column()
    for name, text in _rows(plan):
        table.add_row(name, text)
    return table


def import_table(stored: "Stored", report: "ImportReport", *, dry_run: bool) -> Table:
    """The account of an import: what was added, what was left out and why."""
    title = "Would become of the rows" if dry_run else f"Catalogue revision {stored.revision}"
    table = Table("Rows", "What became of them", "For example", title=title, box=box.SIMPLE, title_justify="left")
    table.add_row(f"{stored.added:,}", "added", "")
    table.add_row(f"{stored.known:,}", "held already", "")
    if stored.contradicting:
        told = stored.contradictions[0]
        table.add_row(f"{stored.contradicting:,}", "left out: contradict what is held", told)
    for what, reasons in (("skipped", report.skipped), ("left out", report.quarantined)):
        for reason, count in sorted(reasons.items(), key=lambda each: -each[1]):
            example = report.examples.get(reason, ("",))[0]
            table.add_row(f"{count:,}", f"{what}: {reason.replace('_', ' ')}", example)
    return table


def _rows(plan: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    layout, memory, cache = plan["layout"], plan["memory"], plan["kv_cache"]
    sizes = {
        "tensor": layout["tensor_parallel_size"],
        "pipeline": layout["pipeline_parallel_size"],
        "data": layout["data_parallel_size"],
        "decode context": layout["decode_context_parallel_size"],
    }
    split = [f"{name} parallel {size}" for name, size in sizes.items() if size > 1]
    split += ["expert parallel"] if layout["expert_parallel"] else []
    yield "Layout", ", ".join(split) or "one GPU holds it all"
    yield (
        "Memory of a GPU",
        f"{_gib(memory['total_bytes'])}, of which the engine may use {_gib(memory['usable_bytes'])}",
    )
    yield "  weights", _gib(memory["weights_bytes"])
    low, high = memory["working_space_low_bytes"], memory["working_space_high_bytes"]
    yield "  working space", f"{_gib(memory['working_space_bytes'])} ({_gib(low)} to {_gib(high)})"
    room, needed = memory["kv_cache_room_bytes"], memory["kv_cache_needed_bytes"]
    yield "  KV cache", f"room for {_gib(room)}, {_gib(needed)} needed"
    yield "KV cache tokens", f"{cache['tokens']:,} in {cache['num_blocks']:,} blocks of {cache['block_size']}"
    yield "Conversations", f"{plan['capacity']['concurrent_sequences']:,} fit"
    if tpot := plan["latency"]["tpot_ms"]:
        yield "Time per token", f"{tpot['value']:.1f} ms ({tpot['low']:.1f} to {tpot['high']:.1f})"
    if ttft := plan["latency"]["ttft_ms"]:
        yield "First token after", f"{ttft['value']:.0f} ms ({ttft['low']:.0f} to {ttft['high']:.0f})"
    if cost := plan["cost"]:
        yield "Cost", f"{cost['per_hour']} {cost['currency']} an hour"
    yield "Starts with", plan["engine"]["command"]


def _gib(count: float) -> str:
    return f"{count / GIB:.1f} GiB"
