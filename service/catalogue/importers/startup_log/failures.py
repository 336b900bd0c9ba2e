"""The texts with which vLLM refuses to start.

Sources: vLLM 0.6.6 `worker/worker.py`; 0.8.5, 0.11.2 and 0.33 `v1/core/kv_cache_utils.py`, `v1/worker/gpu_worker.py`,
`v1/worker/utils.py`, `v1/core/kv_cache_planning.py`, `config/model.py`, `config/compilation.py`.
"""

import re
from dataclasses import dataclass

from service.catalogue.importers.startup_log.reading import Failure
from service.catalogue.importers.startup_log.text import Message

_GIB = r"-?(?:0|[1-9]\d{0,8})(?:\.\d{1,9})?"


@dataclass(frozen=True, slots=True)
class _Refusal:
    kind: str
    word: str
    pattern: re.Pattern[str]


def _refusal(kind: str, word: str, pattern: str) -> _Refusal:
    return _Refusal(kind, word, re.compile(pattern.replace("<GIB>", _GIB)))


_REFUSALS = (
    _refusal(
        "max_model_len_needs_more_kv",
        "Toserveatleastonerequest",
        r"Toserveatleastonerequestwiththemodels?['\u2019]smaxseqlen\((?P<max_model_len>\d{1,12})\),\((?P<needed_gib><GIB>)GiBKV"
        r"cacheisneeded,whichislargerthantheavailableKVcachememory\((?P<available_kv_gib><GIB>)GiB\)"
        r"(?:\.Basedontheavailablememory,theestimatedmaximummodellengthis(?P<estimated_model_len>\d{1,12})\.)?",
    ),
    _refusal(
        "max_model_len_needs_more_kv",
        "tokensthatcanbestoredinKVcache",
        r"maxseqlen\((?P<max_model_len>\d{1,12})\)islargerthanthemaximumnumberoftokensthatcanbestoredinKVcache"
        r"\((?P<kv_tokens>\d{1,12})\)",
    ),
    _refusal("no_memory_for_kv_cache", "Noavailablememoryforthecacheblocks", r"Noavailablememoryforthecacheblocks"),
    _refusal("no_memory_for_kv_cache", "notenoughGPUmemoryavailabletoserve", r"Cannotauto-fitmax_model_len"),
    _refusal(
        "gpu_memory_in_use",
        "onstartupislessthan",
        r"Freememoryondevice[\w:]{0,12}\((?P<free_gib><GIB>)/(?P<gpu_total_gib><GIB>)GiB\)onstartupislessthandesired"
        r"GPUmemoryutilization\((?P<gpu_memory_utilization>\d\.?\d{0,9}),(?P<requested_gib><GIB>)GiB\)",
    ),
    _refusal(
        "memory_changed_while_profiling",
        "Errorinmemoryprofiling",
        r"Errorinmemoryprofiling\.Initialfreememory(?P<free_gib><GIB>)?",
    ),
    _refusal(
        "sequences_exceed_state_blocks",
        "exceedsavailableMambacacheblocks",
        r"max_num_seqs\((?P<max_num_seqs>\d{1,9})\)exceedsavailableMambacacheblocks\((?P<blocks>\d{1,9})\)",
    ),
    _refusal(
        "heads_not_divisible",
        "mustbedivisiblebytensorparallelsize",
        r"[Tt]otalnumberofattentionheads\((?P<heads>\d{1,6})\)mustbedivisiblebytensorparallelsize"
        r"\((?P<tensor_parallel_size>\d{1,4})\)",
    ),
    _refusal(
        "longer_than_derived",
        "isgreaterthanthederivedmax_model_len",
        r"User-specifiedmax_model_len\((?P<max_model_len>\d{1,12})\)isgreaterthanthederivedmax_model_len",
    ),
    _refusal(
        "out_of_memory",
        "outofmemory.Triedtoallocate",
        r"(?:CUDA|HIP|XPU)outofmemory\.Triedtoallocate(?:(?P<tried_gib><GIB>)GiB|\d{1,9}(?:\.\d{1,4})?[KM]iB)",
    ),
    _refusal("engine_did_not_start", "Enginecoreinitializationfailed", r"Enginecoreinitializationfailed"),
    _refusal("engine_did_not_start", "EngineCorefailedtostart", r"EngineCorefailedtostart"),
)


def failure_in(message: Message) -> Failure | None:
    """The refusal a message holds, if it holds one."""
    for refusal in _REFUSALS:
        if refusal.word in message.squeezed:
            match = refusal.pattern.search(message.squeezed)
            if match is not None:
                line = message.line_at(message.in_text(match.start()))
                return Failure(refusal.kind, line, message.around(match.start()), _numbers(message, match))
    return None


def _numbers(message: Message, match: re.Match[str]) -> tuple[tuple[str, float], ...]:
    return tuple(
        (name, float(digits))
        for name, digits in match.groupdict().items()
        if digits is not None and message.together(*match.span(name)).end == match.end(name)
    )
