"""How a deployment is spread over GPUs."""

from dataclasses import dataclass


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
