"""What a GPU must hold outside the share that the engine may take: the CUDA context, NCCL, handles of libraries.

They exist before the engine looks how much is free, so they are not part of its budget, but without room for them it
does not start. Source: vLLM 0.33 `v1/worker/utils.py: request_memory`.
"""

from service.sizing.engine.refusal import Refusal, use
from service.sizing.kv_cache.planner import gib
from service.sizing.layouts import Layout
from service.sizing.quantities import GIB

LEAST_CONTEXT_BYTES = GIB // 10
"""Less than any process with a CUDA context leaves free: the refusal is certain."""

USUAL_CONTEXT_BYTES = GIB // 2
USUAL_GROUP_BYTES = GIB
"""About what a context takes, alone and with the communicators of several GPUs (assumed, not measured)."""


def no_room_outside(total_bytes: int, usable_bytes: int, utilization: float) -> Refusal | None:
    """Why the engine cannot start: its share leaves nothing of the GPU for the process itself."""
    if total_bytes - usable_bytes >= LEAST_CONTEXT_BYTES:
        return None
    most = (total_bytes - LEAST_CONTEXT_BYTES) / total_bytes
    return Refusal(
        "utilization_leaves_no_context",
        f"a utilisation of {utilization:g} leaves {gib(total_bytes - usable_bytes)} GiB of a GPU for the process's own "
        "context, which needs more",
        f"Free memory on device cuda:0 ({gib(total_bytes - LEAST_CONTEXT_BYTES)}/{gib(total_bytes)} GiB) on startup is "
        f"less than desired GPU memory utilization ({utilization:g}, {gib(usable_bytes)} GiB). Decrease GPU memory "
        "utilization or reduce GPU memory used by other processes.",
        (use("gpu_memory_utilization", int(most * 100) / 100, "less"),) if most >= 0.01 else (),
    )


def little_room_outside(layout: Layout, total_bytes: int, usable_bytes: int) -> str | None:
    """A warning where the context and the communicators may not fit beside the engine's share."""
    usual = (
        USUAL_GROUP_BYTES if layout.tensor_parallel_size * layout.pipeline_parallel_size > 1 else USUAL_CONTEXT_BYTES
    )
    left = total_bytes - usable_bytes
    if left >= usual:
        return None
    return (
        f"the utilisation leaves {gib(left)} GiB of each GPU for the CUDA context and libraries, which take about "
        f"{gib(usual)} GiB: lower it if vLLM reports too little free memory"
    )
