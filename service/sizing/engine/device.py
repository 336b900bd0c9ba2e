"""The few facts of a GPU that decide the engine's defaults and kernels."""

from dataclasses import dataclass

from service.sizing.hardware import Gpu, Vendor


@dataclass(frozen=True, slots=True)
class Device:
    """A GPU as the engine's rules ask about it; hashable, so that plans can be remembered by it.

    Attributes
    ----------
    name : str
        As the driver prints it.
    vendor : Vendor
        Who makes it.
    capability : tuple of int
        CUDA compute capability; (0, 0) elsewhere.
    memory_bytes : int
        Total the driver reports: the batch-size tier follows it.
    """

    name: str
    vendor: Vendor
    capability: tuple[int, int]
    memory_bytes: int

    @classmethod
    def of(cls, gpu: Gpu) -> "Device":
        """The device of a catalogue GPU; without a driver's total, the total a CUDA process sees."""
        return cls(
            gpu.name, gpu.vendor, gpu.compute_capability or (0, 0), gpu.memory_driver_bytes or gpu.memory_total_bytes
        )

    @property
    def runs_flash_attention_4(self) -> bool:
        """Whether FlashAttention 4 exists for it (vLLM 0.33 `vllm_flash_attn`)."""
        return self.capability[0] in (9, 10, 11)
