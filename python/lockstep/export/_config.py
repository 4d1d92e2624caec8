"""ExportConfig: how a trainer's weights are exported, by its configuration."""

import argparse
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Mapping, NoReturn, Sequence

from lockstep.core.errors import BadDataError
from lockstep.export._publisher import Publisher

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from lockstep.export._publisher import ShardedOptions

DEFAULT_BUCKET_BYTES = 512 << 20
DEFAULT_RECONNECT_TIMEOUT = 60.0
_BACKENDS = ("megatron", "fsdp")


@dataclass(frozen=True)
class ExportConfig:
    """How a trainer is laid out, and where its weights go.

    ``backend`` is "megatron" or "fsdp"; empty chooses megatron where there is pipeline or expert parallelism.
    Sizes are those of the trainer; ``publisher`` holds them against the running process groups.
    """

    backend: str = ""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    expert_parallel_size: int = 1
    weight_export_bucket_bytes: int = DEFAULT_BUCKET_BYTES
    weight_export_threads: int = 0
    socket: str = ""
    model: str = ""
    reconnect_timeout: float = DEFAULT_RECONNECT_TIMEOUT
    skip_while_away: bool = False

    def __post_init__(self) -> None:
        for field in fields(self):
            value: Any = getattr(self, field.name)
            wanted: Any = type(field.default)
            if type(value) is not wanted and not (wanted is float and type(value) is int):
                raise BadDataError(f"{field.name}: {value!r} is a {type(value).__name__}, not a {wanted.__name__}")
            least = 0 if field.default == 0 else 1
            if wanted in (int, float) and value < least:
                raise BadDataError(f"{field.name}: {value} is not at least {least}")
        if not self.backend:
            object.__setattr__(self, "backend", "megatron" if self._needs_megatron() else "fsdp")
        if self.backend not in _BACKENDS:
            raise BadDataError(f'backend: "{self.backend}" is none of {", ".join(_BACKENDS)}')
        if self.backend == "fsdp" and self._needs_megatron():
            raise BadDataError(
                f"backend: fsdp has no pipeline or expert parallelism, but pipeline_parallel_size is "
                f"{self.pipeline_parallel_size} and expert_parallel_size is {self.expert_parallel_size}"
            )

    @classmethod
    def from_dict(cls, config: "Mapping[str, Any]") -> "ExportConfig":
        """From a trainer's (YAML-like) configuration.

        Reads ``trainer.engine.{backend, tensor_parallel_size, pipeline_parallel_size, expert_parallel_size}``,
        ``actor.megatron.weight_export_bucket_bytes`` (``actor`` next to ``trainer`` or inside it) and
        ``lockstep.{socket, model, weight_export_threads, reconnect_timeout, skip_while_away}``; a flat dict of these fields works too. Other keys of
        ``trainer`` and ``actor`` are the trainer's own. BadDataError names a value that is wrong, or given twice and
        differently.
        """
        trainer = _section(config, "trainer")
        sources = (
            config,
            _section(trainer, "engine"),
            _section(_section(trainer, "actor"), "megatron"),
            _section(_section(config, "actor"), "megatron"),
            _section(config, "lockstep"),
        )
        names = {field.name for field in fields(cls)}
        unknown = set(_section(config, "lockstep")) - names
        if unknown:
            known = ", ".join(sorted(names))
            raise BadDataError(f"lockstep: unknown keys {', '.join(sorted(unknown))}; known: {known}")
        values: "dict[str, Any]" = {}
        for source in sources:
            for name in sorted(names & set(source)):
                if values.setdefault(name, source[name]) != source[name]:
                    raise BadDataError(f"{name}: it is both {values[name]!r} and {source[name]!r}")
        return cls(**values)

    @classmethod
    def from_flags(cls, arguments: "Sequence[str] | None" = None) -> "ExportConfig":
        """From command-line flags named as the fields (``--tensor-parallel-size 4``); other flags are left alone.

        None: those of this process. BadDataError names a flag whose value is missing or wrong.
        """
        parser = _Parser(add_help=False, allow_abbrev=False)
        for field in fields(cls):
            flag = "--" + field.name.replace("_", "-")
            kind: Any = type(field.default)
            how: "dict[str, Any]" = {"action": "store_true"} if kind is bool else {"type": kind}
            parser.add_argument(flag, default=field.default, **how)
        known, _ = parser.parse_known_args(arguments)
        return cls(**vars(known))

    def publisher(self, module: Any, /, hf_config: Any = None, **options: "Unpack[ShardedOptions]") -> Publisher:
        """A publisher of ``module`` (Megatron's model chunks, or an FSDP2 model).

        BadDataError: the running process groups have other sizes than the configuration, or hf_config is missing.
        """
        settings: "dict[str, Any]" = {
            "socket": self.socket,
            "model": self.model,
            "bucket_bytes": self.weight_export_bucket_bytes,
            "threads": self.weight_export_threads,
            "reconnect_timeout": self.reconnect_timeout,
            "skip_while_away": self.skip_while_away,
            **options,
        }
        if self.backend == "fsdp":
            return Publisher.from_fsdp(module, **settings)
        if hf_config is None:
            raise BadDataError("backend megatron: hf_config is missing; give the model's HuggingFace configuration")
        self._check_process_groups()
        return Publisher.from_megatron(module, hf_config, **settings)

    def _needs_megatron(self) -> bool:
        return self.pipeline_parallel_size > 1 or self.expert_parallel_size > 1

    def _check_process_groups(self) -> None:
        from lockstep.export._megatron import process_groups

        parallel_state = process_groups()
        running = {
            "tensor_parallel_size": parallel_state.get_tensor_model_parallel_world_size(),
            "pipeline_parallel_size": parallel_state.get_pipeline_model_parallel_world_size(),
            "expert_parallel_size": parallel_state.get_expert_model_parallel_world_size(),
        }
        for name, size in running.items():
            if getattr(self, name) != size:
                raise BadDataError(f"{name} is {getattr(self, name)}, but Megatron runs with {size}")


class _Parser(argparse.ArgumentParser):
    """Raises, where argparse would end the trainer."""

    def error(self, message: str) -> NoReturn:
        raise BadDataError(message)


def _section(config: "Mapping[str, Any]", name: str) -> "Mapping[str, Any]":
    section = config.get(name, {})
    if not isinstance(section, Mapping):
        raise BadDataError(f"{name}: expected a section with keys, found {section!r}")
    return section
