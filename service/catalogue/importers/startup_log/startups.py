"""The messages of a paste, sorted by the startup they belong to."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from service.catalogue.importers.startup_log.dumps import holds_arguments, introduces_engine
from service.catalogue.importers.startup_log.failures import failure_in
from service.catalogue.importers.startup_log.lines import Found, figures_in
from service.catalogue.importers.startup_log.reading import Failure, Reading
from service.catalogue.importers.startup_log.text import Message

_SERVER_VERSION = re.compile(r"vLLM (?:API )?server version v?(?P<version>\d[\w.+-]{0,79})")
_LOGO_VERSION = re.compile(r"[\u2580-\u259f] {1,8}version {1,8}v?(?P<version>\d[\w.+-]{0,79})")
_LOGO_MODEL = re.compile(r"[\u2580-\u259f] {1,8}model {1,8}(?P<model>[\w./-]{2,200})")
_PLATFORM = re.compile(r"Automatically detected platform (?P<device>[a-z]{2,10})\.")
_GPU_NAMES = (
    ("Your device '", re.compile(r"Your device '(?P<name>[^']{2,80})' \(with compute capability")),
    ("GPU has compute", re.compile(r"Your (?P<name>[A-Z][\w .()/-]{2,80}) GPU has compute capability")),
    (" (UUID", re.compile(r"\bGPU \d{1,2}: (?P<name>[A-Z][\w .()/-]{2,80}) \(UUID")),
    ("device_name=", re.compile(r"device_name=(?P<name>[A-Z][\w.+-]{2,80}?)(?:,dtype|,block|\.json)")),
)
"""Lines that name the card; the last is the file name of a tuned kernel's configuration, blanks written as "_"."""

_DATA_PARALLEL = re.compile(r"data_parallel_size'?[=:](\d{1,5})[,)}]")
"""How many engines a startup has, in an engine's configuration or, before 0.11, in the arguments alone."""

_STARTED = (
    "Application startup complete",
    "init engine (profile",
    "Starting vLLM API server",
    "Starting vLLM server on",
)
_GENERIC_FAILURE = "engine_did_not_start"


@dataclass(slots=True)
class Startup:
    """What one startup printed, in order."""

    first_line: int
    last_line: int = 0
    arguments: list[Message] = field(default_factory=list[Message])
    versions: list[Reading[str]] = field(default_factory=list[Reading[str]])
    models: list[Reading[str]] = field(default_factory=list[Reading[str]])
    engines: list[Message] = field(default_factory=list[Message])
    devices: list[Reading[str]] = field(default_factory=list[Reading[str]])
    gpu_names: list[Reading[str]] = field(default_factory=list[Reading[str]])
    figures: list[tuple[Found, Message]] = field(default_factory=list[tuple[Found, Message]])
    failure: Failure | None = None
    started: bool = False

    @property
    def complete(self) -> bool:
        """Whether it came as far as a KV cache of a known size."""
        return any(found.name in ("kv_tokens", "gpu_blocks") for found, _ in self.figures)

    @property
    def empty(self) -> bool:
        """Whether nothing of a startup was seen."""
        return not (self.arguments or self.versions or self.engines or self.figures or self.failure)

    @property
    def under_way(self) -> bool:
        """Whether it is past printing its arguments."""
        return bool(self.engines or self.figures or self.failure)


def startups_in(messages: Iterable[Message]) -> list[Startup]:
    """The startups of a paste in order; those in which nothing was seen are left out."""
    startups: list[Startup] = []
    current = Startup(first_line=1)
    for message in messages:
        if _begins_another(current, message):
            startups.append(current)
            current = Startup(first_line=message.line)
        _take(current, message)
    startups.append(current)
    return [startup for startup in startups if not startup.empty]


def _begins_another(current: Startup, message: Message) -> bool:
    if introduces_engine(message):
        return _another_engine(current, message)
    if holds_arguments(message):
        return current.under_way or bool(current.arguments)
    if _server_version(message) is not None:
        return current.under_way or bool(current.arguments)
    return False


def _another_engine(current: Startup, message: Message) -> bool:
    """Whether an engine introducing itself is a new startup, not a further data-parallel engine of this one."""
    if not current.engines:
        return any(found.name == "kv_tokens" for found, _ in current.figures)
    if message.process and message.process in {engine.process for engine in current.engines}:
        return True
    return len(current.engines) >= max(map(_copies, (*current.arguments, *current.engines, message)))


def _copies(settings: Message) -> int:
    match = _DATA_PARALLEL.search(settings.squeezed)
    return int(match[1]) if match else 1


def _take(startup: Startup, message: Message) -> None:
    startup.last_line = message.last_line
    if holds_arguments(message):
        startup.arguments.append(message)
    if introduces_engine(message):
        startup.engines.append(message)
    version = _server_version(message)
    if version is not None:
        startup.versions.append(version)
    for logo_or_platform, into in ((_LOGO_MODEL, startup.models), (_PLATFORM, startup.devices)):
        found = _named(message, logo_or_platform)
        if found is not None:
            into.append(found)
    for word, naming in _GPU_NAMES:
        found = _named(message, naming) if word in message.text else None
        if found is not None:
            startup.gpu_names.append(Reading(found.value.replace("_", " "), found.line, found.process, found.text))
    startup.figures.extend((found, message) for found in figures_in(message))
    failure = failure_in(message)
    if failure is not None and (startup.failure is None or startup.failure.kind == _GENERIC_FAILURE):
        startup.failure = failure
    startup.started = startup.started or any(words in message.text for words in _STARTED)


def _server_version(message: Message) -> Reading[str] | None:
    if "version" not in message.text:
        return None
    return _named(message, _SERVER_VERSION) or _named(message, _LOGO_VERSION)


def _named(message: Message, pattern: re.Pattern[str]) -> Reading[str] | None:
    """The text of the pattern's one group, where no line break may have cut it."""
    match = pattern.search(message.text)
    if match is None or not message.intact(match.start(), match.end()):
        return None
    if match.end() == len(message.text) and not message.ended:
        return None
    if not message.intact(match.start(), match.end() + 1):
        return None
    return Reading(match[1], message.line, message.process, message.text[match.start() : match.start() + 240])
