"""From a deployment to the arguments, commands and manifests that start it.

Spellings: vLLM 0.33's own parser.
"""

import shlex
from dataclasses import dataclass

from service.sizing.answer import FlagAnswer
from service.sizing.engine.options import EngineOptions
from service.sizing.engine.profile import NEWEST, release
from service.sizing.layouts import Layout
from service.sizing.quantities import ceil_div

HEAD_ADDRESS = "HEAD_NODE_ADDRESS"
"""Stands for the first node's address in commands that span nodes."""

FIRST_VERSION_WITH_NODES = (0, 12, 0)
"""First release that spans nodes without Ray (`--nnodes`)."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """All that the flags are made from.

    `options` are the caller's own; `max_model_len` and `max_num_seqs` what the plan sets beyond them, with the reason.
    """

    model: str
    version: str
    layout: Layout
    nodes: int
    gpus_per_node: int
    vendor: str
    options: EngineOptions
    max_model_len: tuple[int, str] | None
    max_num_seqs: tuple[int, str] | None
    max_num_batched_tokens: int | None = None


def flags(deployment: Deployment) -> tuple[FlagAnswer, ...]:
    """Arguments after `vllm serve MODEL`, each with its reason; those of single nodes are added by `commands`."""
    layout, options = deployment.layout, deployment.options
    found = list[FlagAnswer]()

    def add(flag: str, value: object = None, why: str = "asked for") -> None:
        found.append(FlagAnswer(flag, None if value is None else str(value), why))

    if layout.tensor_parallel_size > 1:
        add(
            "--tensor-parallel-size",
            layout.tensor_parallel_size,
            f"every layer is split over {layout.tensor_parallel_size} GPUs",
        )
    if layout.pipeline_parallel_size > 1:
        add(
            "--pipeline-parallel-size",
            layout.pipeline_parallel_size,
            f"the layers are split into {layout.pipeline_parallel_size} stages",
        )
    if layout.data_parallel_size > 1:
        add(
            "--data-parallel-size",
            layout.data_parallel_size,
            f"{layout.data_parallel_size} copies share the load",
        )
    if layout.expert_parallel:
        add("--enable-expert-parallel", why=f"whole experts are spread over {layout.expert_ranks} GPUs")
    if layout.decode_context_parallel_size > 1:
        add(
            "--decode-context-parallel-size",
            layout.decode_context_parallel_size,
            f"{layout.decode_context_parallel_size} GPUs share one cache by tokens",
        )
    if options.gpu_memory_utilization is not None:
        add("--gpu-memory-utilization", options.gpu_memory_utilization)
    if deployment.max_model_len is not None:
        add("--max-model-len", *deployment.max_model_len)
    elif options.max_model_len is not None:
        add("--max-model-len", options.max_model_len)
    if deployment.max_num_seqs is not None:
        add("--max-num-seqs", *deployment.max_num_seqs)
    elif options.max_num_seqs is not None:
        add("--max-num-seqs", options.max_num_seqs)
    if deployment.max_num_batched_tokens is not None:
        add("--max-num-batched-tokens", deployment.max_num_batched_tokens, "one token of each sequence in a step")
    elif options.max_num_batched_tokens is not None:
        add("--max-num-batched-tokens", options.max_num_batched_tokens)
    if options.kv_cache_dtype != "auto":
        add("--kv-cache-dtype", options.kv_cache_dtype)
    if options.kv_cache_memory_bytes is not None:
        add("--kv-cache-memory-bytes", options.kv_cache_memory_bytes)
    if options.block_size is not None:
        add("--block-size", options.block_size)
    if options.enable_prefix_caching is not None:
        add("--enable-prefix-caching" if options.enable_prefix_caching else "--no-enable-prefix-caching")
    if options.disable_hybrid_kv_cache_manager:
        add("--disable-hybrid-kv-cache-manager")
    if options.enforce_eager:
        add("--enforce-eager")
    return tuple(found)


def arguments(found: tuple[FlagAnswer, ...]) -> tuple[str, ...]:
    """The flags as words of a command line."""
    return tuple(word for flag in found for word in (flag.flag, flag.value) if word is not None)


def node_arguments(deployment: Deployment, node: int) -> tuple[str, ...]:
    """Arguments that only `node` of several takes.

    Pipeline and tensor ranks over nodes take `--nnodes` (older releases: a Ray cluster, started beforehand); copies
    over nodes take their share of the copies.
    """
    if deployment.nodes == 1:
        return ()
    layout = deployment.layout
    copy = layout.tensor_parallel_size * layout.pipeline_parallel_size
    if layout.data_parallel_size > 1 and copy <= deployment.gpus_per_node:
        each = ceil_div(layout.data_parallel_size, deployment.nodes)
        local = min(each, layout.data_parallel_size - node * each)
        words = ("--data-parallel-size-local", str(local), "--data-parallel-address", HEAD_ADDRESS)
        return words if node == 0 else (*words, "--data-parallel-start-rank", str(node * each), "--headless")
    if (release(deployment.version) or NEWEST.first) < FIRST_VERSION_WITH_NODES:
        return ("--distributed-executor-backend", "ray")
    words = ("--nnodes", str(deployment.nodes), "--node-rank", str(node), "--master-addr", HEAD_ADDRESS)
    return words if node == 0 else (*words, "--headless")


def command(deployment: Deployment, words: tuple[str, ...]) -> str:
    """The `vllm serve` command; one line a node where there are several."""
    lines = list[str]()
    for node in range(_nodes_with_own_command(deployment)):
        lines.append(shlex.join(("vllm", "serve", deployment.model, *words, *node_arguments(deployment, node))))
    return "\n".join(lines)


def _nodes_with_own_command(deployment: Deployment) -> int:
    """Ray starts every worker from the first node's command."""
    ray = "ray" in node_arguments(deployment, 0)
    return 1 if ray else deployment.nodes
