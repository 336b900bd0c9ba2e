"""The conditions of one startup, from its dumps and lines, each with where it was read."""

from collections.abc import Callable, Iterable, Iterator

from service.catalogue.importers.startup_log.dumps import (
    Dump,
    Printed,
    as_bool,
    as_float,
    as_int,
    as_text,
    read_arguments,
    read_engine_line,
)
from service.catalogue.importers.startup_log.reading import Engine, N, Reading, Readings, T
from service.catalogue.importers.startup_log.startups import Startup

MEMORY_ARGUMENTS = (
    "additional_config", "all2all_backend", "async_scheduling", "attention_backend", "compilation_config",
    "cudagraph_capture_sizes", "data_parallel_size_local", "disable_custom_all_reduce",
    "disable_hybrid_kv_cache_manager", "disable_sliding_window", "distributed_executor_backend", "enable_dbo",
    "enable_eplb", "enable_sleep_mode", "eplb_config", "hf_overrides", "kv_cache_dtype_skip_layers",
    "kv_offloading_backend", "kv_offloading_size", "kv_transfer_config", "language_model_only", "limit_mm_per_prompt",
    "load_format", "mamba_cache_dtype", "mamba_cache_mode", "mamba_ssm_cache_dtype", "max_cudagraph_capture_size",
    "max_lora_rank", "max_loras", "max_seq_len_to_capture", "mm_encoder_tp_mode", "mm_processor_kwargs", "moe_backend",
    "nnodes", "num_scheduler_steps", "optimization_level", "performance_mode", "quantization_config", "rope_scaling",
    "runner", "swap_space", "worker_cls",
)  # fmt: skip
"""Arguments without a field of their own that can change what a startup takes of memory."""

_ARGUMENTS = (
    "dtype", "quantization", "kv_cache_dtype", "tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size",
    "decode_context_parallel_size", "prefill_context_parallel_size", "enable_expert_parallel", "gpu_memory_utilization",
    "kv_cache_memory_bytes", "max_model_len", "max_num_seqs", "max_num_batched_tokens", "block_size",
    "num_gpu_blocks_override", "enforce_eager", "enable_prefix_caching", "enable_chunked_prefill", "speculative",
    "enable_lora", "cpu_offload_gib",
)  # fmt: skip
_RENAMED = {"speculative": "speculative_config", "cpu_offload_gib": "cpu_offload_gb"}


class Conditions:
    """Reads the conditions of a startup; the most telling source comes first."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._engines = [read_engine_line(message) for message in startup.engines]
        self._configs = [line.config for line in self._engines if line.config is not None]
        self._arguments = [read_arguments(message) for message in startup.arguments]

    def text(self, config: str, argument: str = "") -> Reading[str] | None:
        """A condition that is a word, from the engine's configuration, else from the arguments."""
        return _first(self._printed(config, argument or config, as_text))

    def raw(self, name: str) -> Reading[str] | None:
        """A condition of any shape as printed, "none" where it says None."""
        return _first(self._printed(name, name, _as_printed))

    def number(self, config: str, argument: str = "") -> Reading[int] | None:
        """A condition that is a whole number from 1."""
        return _first([each for each in self._printed(config, argument or config, as_int) if each.value > 0])

    def flag(self, config: str, argument: str = "") -> Reading[bool] | None:
        """A condition that is true or false."""
        return _first(self._printed(config, argument or config, as_bool))

    def line(self, name: str) -> Reading[int] | None:
        """A condition that a line of its own states; the last such line."""
        figures = self.counts(name)
        return figures.each[-1] if figures else None

    def utilization(self) -> Reading[float] | None:
        """`gpu_memory_utilization` as some line states it, else as given, else as V0 rounds it."""
        stated = self.sizes("gpu_memory_utilization")
        given = _first(self._given("gpu_memory_utilization", as_float))
        rounded = self.sizes("profile_utilization")
        return (stated.each[0] if stated else None) or given or (rounded.each[0] if rounded else None)

    def offload_gib(self) -> Reading[float] | None:
        """`cpu_offload_gb`, as given."""
        return _first(self._given("cpu_offload_gb", as_float))

    def model(self) -> Reading[str] | None:
        """The model, from the engine's configuration, the arguments, or the banner."""
        named = [*self._configured("model", as_text), *self._models_given(), *self._startup.models]
        return named[0] if named else None

    def max_model_len(self) -> Reading[int] | None:
        """The length the engine settled on."""
        configured = self.number("max_seq_len", "max_model_len")
        return self.line("fitted_model_len") or configured or self.line("max_model_len")

    def versions(self) -> list[Reading[str]]:
        """Every version the log states."""
        stated = [
            Reading(line.version, line.message.line, line.message.process, line.message.text[:240])
            for line in self._engines
            if line.version
        ]
        return stated + self._startup.versions

    def engine(self) -> Reading[Engine] | None:
        """Which engine ran: as the engine says, else by the lines only one of the two prints."""
        for line in self._engines:
            message = line.message
            if line.engine:
                return Reading(Engine(line.engine), message.line, message.process, message.text[:240])
            if "llm_engine.py" in message.text or "use_cached_outputs=" in message.text:
                return Reading(Engine.V0, message.line, message.process, message.text[:240])
        for name, engine in (("kv_tokens", Engine.V1), ("cpu_blocks", Engine.V0)):
            figures = self.counts(name)
            if figures:
                first = figures.each[0]
                return Reading(engine, first.line, first.process, first.text)
        return None

    def device(self) -> Reading[str] | None:
        """The platform: "cuda", "rocm", "cpu" and so on."""
        if self._startup.devices:
            return self._startup.devices[0]
        return self.text("device_config")

    def sizes(self, *names: str) -> Readings[float] | None:
        """Every rank's value of a figure in GiB, under the first of `names` that the log has."""
        return next((found for name in names if (found := self._figures(name, float))), None)

    def counts(self, name: str) -> Readings[int] | None:
        """Every rank's value of a figure that is a count."""
        return self._figures(name, int_of)

    def _figures(self, name: str, convert: Callable[[str], N]) -> Readings[N] | None:
        """Every value of a figure; one that the same process repeats counts once."""
        seen: dict[tuple[str | int, N], Reading[N]] = {}
        for found, message in self._startup.figures:
            if found.name == name:
                value = convert(found.digits)
                line = message.line_at(message.in_text(found.start))
                reading = Reading(value, line, message.process, message.around(found.start))
                key = (message.process or id(message), value)
                seen.setdefault(key, reading)
        return Readings(tuple(seen.values())) if seen else None

    def defaults(self) -> tuple[str, ...]:
        """The conditions left at vLLM's default: whole printed arguments do not name them, or name None."""
        for dump in self._arguments:
            if dump.whole:
                given = {name for name, printed in dump.values.items() if printed.raw != "None"}
                return tuple(name for name in _ARGUMENTS if _RENAMED.get(name, name) not in given)
        return ()

    def others(self) -> tuple[tuple[str, str], ...]:
        """The printed arguments without a field here that can change the memory taken."""
        return tuple(
            (name, dump.values[name].raw[:200])
            for dump in self._arguments
            for name in MEMORY_ARGUMENTS
            if name in dump.values and dump.values[name].raw not in ("None", "False")
        )

    def disagreements(self) -> Iterator[str]:
        """Conditions that two sources in the log state differently."""
        for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
            yield from _differing(name, self._printed(name, name, as_int))
        if self.line("fitted_model_len") is None:
            lengths = [each for each in self._printed("max_seq_len", "max_model_len", as_int) if each.value > 0]
            stated = self.line("max_model_len")
            yield from _differing("max_model_len", [*lengths, *([stated] if stated else [])])
        stated = self.sizes("gpu_memory_utilization")
        given = self._given("gpu_memory_utilization", as_float)
        yield from _differing("gpu_memory_utilization", [*given, *(stated.each if stated else ())])
        batched = self.counts("max_num_batched_tokens")
        given_tokens = self._given("max_num_batched_tokens", as_int)
        yield from _differing("max_num_batched_tokens", [*given_tokens, *(batched.each if batched else ())])
        yield from _differing("version", self.versions())
        models = [*self._configured("model", as_text), *self._models_given()]
        yield from _differing("model", [_folded(each) for each in models if _is_hub_name(each.value)])
        yield from _differing("GPU", self._startup.gpu_names)
        eager = self.flag("enforce_eager")
        if eager and not eager.value and any(each.value for each in self._given("enforce_eager", as_bool)):
            yield f"enforce_eager was given, yet the engine's configuration (line {eager.line}) says False"

    def _models_given(self) -> Iterator[Reading[str]]:
        """The model each dump of arguments names; the positional one wins over the option, which has a default."""
        for dump in self._arguments:
            yield from list(_values((dump,), "model_tag", as_text) or _values((dump,), "model", as_text))[:1]

    def _configured(self, name: str, convert: Callable[[str], T | None]) -> list[Reading[T]]:
        return _values(self._configs, name, convert)

    def _given(self, name: str, convert: Callable[[str], T | None]) -> list[Reading[T]]:
        """What the arguments say; None there means the default, which is silence."""
        return [reading for reading in _values(self._arguments, name, convert) if reading.value != "none"]

    def _printed(self, config: str, argument: str, convert: Callable[[str], T | None]) -> list[Reading[T]]:
        return [*self._configured(config, convert), *self._given(argument, convert)]


def _values(dumps: Iterable[Dump], name: str, convert: Callable[[str], T | None]) -> list[Reading[T]]:
    readings: list[Reading[T]] = []
    for dump in dumps:
        printed = dump.values.get(name)
        value = convert(printed.raw) if printed else None
        if printed is not None and value is not None:
            readings.append(_reading(dump, name, printed, value))
    return readings


def int_of(digits: str) -> int:
    """The value of a printed count, with or without thousands separators."""
    return int(digits.replace(",", ""))


def _as_printed(raw: str) -> str:
    return "none" if raw == "None" else raw[:400]


def _reading(dump: Dump, name: str, printed: Printed, value: T) -> Reading[T]:
    message = dump.message
    return Reading(value, message.line_at(printed.start), message.process, f"{name}={printed.raw[:200]}")


def _first(readings: list[Reading[T]]) -> Reading[T] | None:
    return readings[0] if readings else None


def _differing(name: str, readings: Iterable[Reading[T]]) -> Iterator[str]:
    found = list(readings)
    for other in found[1:]:
        if other.value != found[0].value:
            yield f"{name} is {found[0].value} on line {found[0].line} and {other.value} on line {other.line}"
            return


def _is_hub_name(model: str) -> bool:
    return model.count("/") == 1 and model[0] not in "./~" and " " not in model


def _folded(reading: Reading[str]) -> Reading[str]:
    return Reading(reading.value.casefold(), reading.line, reading.process, reading.text)
