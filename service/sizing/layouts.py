"""How a deployment is spread over GPUs."""

from dataclasses import dataclass, replace
from functools import lru_cache
from math import gcd


@dataclass(frozen=True, slots=True)
class Layout:
    """Parallel sizes of a deployment, named as the engine's flags."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    data_parallel_size: int = 1
    expert_parallel: bool = False
    decode_context_parallel_size: int = 1

    @property
    def gpu_count(self) -> int:
        """GPUs used; decode context parallelism adds none."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def expert_ranks(self) -> int:
        """Ranks that whole experts are spread over."""
        return self.tensor_parallel_size * self.data_parallel_size if self.expert_parallel else 1

    @property
    def expert_width_ranks(self) -> int:
        """Ranks that the width of each expert is split over."""
        return 1 if self.expert_parallel else self.tensor_parallel_size * self.data_parallel_size

    @property
    def splits_expert_tokens(self) -> bool:
        """Whether tensor ranks share the tokens of expert layers out among them instead of splitting their weights.

        Source: vLLM 0.33 `config/parallel.py: use_sequence_parallel_moe`, with the default all-to-all backend.
        """
        return self.expert_parallel and self.tensor_parallel_size > 1 and self.data_parallel_size > 1


@lru_cache(maxsize=4096)
def cut_by(layout: Layout, experts: int) -> Layout:
    """The layout that decides what a rank holds: copies share experts, and where there are none nothing.

    `experts` is what the engine counts of a layer; where it overlooks them, the copies are apart too.
    """
    return layout if experts else replace(layout, data_parallel_size=1)


def powers_up_to(limit: int) -> list[int]:
    """1, 2, 4, 8 ... not above `limit`."""
    sizes = [1]
    while sizes[-1] * 2 <= limit:
        sizes.append(sizes[-1] * 2)
    return sizes


@lru_cache(maxsize=1024)
def counts_to_try(gpus_per_node: int, most: int) -> tuple[int, ...]:
    """GPU counts a search tries: 1, 2, 4, 8 ... within a node and the whole node, then whole nodes."""
    within = [count for count in (*powers_up_to(gpus_per_node), gpus_per_node) if count <= most]
    beyond = range(2 * gpus_per_node, most + 1, gpus_per_node)
    return tuple(dict.fromkeys((*within, *beyond)))


@lru_cache(maxsize=4096)
def candidates(
    gpu_count: int,
    *,
    gpus_per_node: int,
    gpus_per_domain: int,
    has_experts: bool,
) -> tuple[Layout, ...]:
    """Layouts of exactly `gpu_count` GPUs worth judging.

    Tensor parallel stays inside a link domain of `gpus_per_domain` GPUs; pipeline goes over what the domain does not
    cover (the cards of a node without fast links, whole nodes); data parallel fills the rest. Two cards without fast
    links may still split tensors, so both splits are offered for a pair. With experts, whole experts may be spread over
    the ranks.
    """
    domain = min(gpus_per_domain, gpus_per_node)
    widest = 2 if domain == 1 and gpu_count == 2 <= gpus_per_node else domain
    found = list[Layout]()
    for copy in _copies(gpu_count, gpus_per_node):
        for tensor in _divisors(copy):
            stages = copy // tensor
            if tensor > widest:
                continue
            if stages > 1 and tensor < min(copy, domain) and domain > 1:
                continue
            found += _with_experts(Layout(tensor, stages, gpu_count // copy), has_experts=has_experts)
    return tuple(found)


@lru_cache(maxsize=4096)
def narrower(gpu_count: int, *, gpus_per_node: int, gpus_per_domain: int, has_experts: bool) -> tuple[Layout, ...]:
    """Layouts of `gpu_count` GPUs whose tensor groups are smaller than a link domain, with a pipeline over them.

    They are for models whose heads or widths do not split over the whole domain, as 64 heads do not over six GPUs. No
    group lies across two domains.
    """
    domain = min(gpus_per_domain, gpus_per_node)
    found = list[Layout]()
    for copy in _copies(gpu_count, gpus_per_node):
        widest = min(copy, domain)
        for tensor in _divisors(gcd(copy, widest)):
            if tensor < widest:
                found += _with_experts(Layout(tensor, copy // tensor, gpu_count // copy), has_experts=has_experts)
    return tuple(found)


@lru_cache(maxsize=4096)
def paired(gpu_count: int, *, gpus_per_node: int, has_experts: bool) -> tuple[Layout, ...]:
    """Layouts of `gpu_count` GPUs whose tensors are split over pairs of cards without fast links.

    They are for more than one pair, where single cards and pipelines of them do not serve.
    """
    found = list[Layout]()
    for copy in _copies(gpu_count, gpus_per_node):
        if copy % 2 == 0 and gpus_per_node % 2 == 0 and gpu_count > 2:
            found += _with_experts(Layout(2, copy // 2, gpu_count // copy), has_experts=has_experts)
    return tuple(found)


def _copies(gpu_count: int, gpus_per_node: int) -> list[int]:
    """GPUs of a copy: a divisor of the count that is whole nodes, or of which the nodes hold as many as are wanted."""
    nodes = -(-gpu_count // gpus_per_node)
    return [
        copy
        for copy in _divisors(gpu_count)
        if (copy % gpus_per_node == 0 if copy > gpus_per_node else gpus_per_node // copy * nodes >= gpu_count // copy)
    ]


def _with_experts(layout: Layout, *, has_experts: bool) -> list[Layout]:
    """A layout, and the same with whole experts spread where there are experts and ranks to spread them over."""
    if not has_experts or layout.tensor_parallel_size * layout.data_parallel_size == 1:
        return [layout]
    return [layout, replace(layout, expert_parallel=True)]


def _divisors(number: int) -> list[int]:
    return [size for size in range(1, number + 1) if number % size == 0]
