"""Reads one rank's shard of a Hugging Face checkpoint.

Promises: of every tensor only the rows or columns asked for are read; the checkpoint is one *.safetensors file
or several with or without an index; whatever is missing, damaged or of another shape ends in a ConfigError of
one line that names the file, the tensor and what was expected.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
import torch
from safetensors import SafetensorError, safe_open

from engine.errors import ConfigError

INDEX = "model.safetensors.index.json"


def _files_by_tensor(directory: Path, stack: ExitStack) -> dict[str, tuple[Path, object]]:
    """tensor name -> (its file, the open file)."""
    index = directory / INDEX
    if index.exists():
        try:
            names = sorted(set(msgspec.json.decode(index.read_bytes())["weight_map"].values()))
        except (msgspec.DecodeError, KeyError, TypeError, AttributeError) as error:
            raise ConfigError(f"{index}: is no index of a sharded checkpoint ({error!r})") from None
        files = [directory / name for name in names]
    else:
        files = sorted(directory.glob("*.safetensors"))
    if not files:
        raise ConfigError(f"{directory}: holds no weights (*.safetensors)")
    tensors: dict[str, tuple[Path, object]] = {}
    for file in files:
        try:
            opened = stack.enter_context(safe_open(file, framework="pt"))
        except (SafetensorError, OSError) as error:
            raise ConfigError(f"{file}: cannot be read ({error})") from None
        tensors.update((name, (file, opened)) for name in opened.keys())  # noqa: SIM118 (no mapping)
    return tensors


class Checkpoint:
    """An open checkpoint. Use as a context manager: tensors are mapped while it is open, copies stay.

    Raises ConfigError from every method, as the file's promise says.
    """

    def __init__(self, directory: str | Path, dtype: torch.dtype, device: str) -> None:
        self.directory = Path(directory)
        self._dtype = dtype
        self._device = device
        self._stack = ExitStack()
        try:
            self._tensors = _files_by_tensor(self.directory, self._stack)
        except BaseException:
            self._stack.close()
            raise

    def __enter__(self) -> Checkpoint:
        return self

    def __exit__(self, *error: object) -> None:
        self._tensors = {}
        self._stack.close()

    def read(self, name: str, shape: Sequence[int], rows: slice | None = None,
             columns: slice | None = None) -> torch.Tensor:
        """A contiguous copy of `rows` or `columns` (one of them at most) of a tensor of this whole `shape`.

        A slice that runs over the end is filled up with zeros, so that all ranks hold equal shapes.
        """
        if name not in self._tensors:
            raise ConfigError(f"{self.directory}: the weights have no tensor {name!r}")
        file, opened = self._tensors[name]
        try:
            part = opened.get_slice(name)  # type: ignore[attr-defined]
            found = list(part.get_shape())
            if found != list(shape):
                raise ConfigError(f"{file}: {name} has shape {found}, but config.json asks for {list(shape)}")
            wanted = rows or columns or slice(0, shape[0])
            start, stop = (min(edge, shape[1 if columns else 0]) for edge in (wanted.start, wanted.stop))
            tensor = part[:, start:stop] if columns else part[start:stop]
        except SafetensorError as error:
            raise ConfigError(f"{file}: {name} cannot be read ({error})") from None
        missing = (wanted.stop - wanted.start) - (stop - start)
        if missing:
            padding = [missing, *tensor.shape[1:]] if not columns else [tensor.shape[0], missing]
            tensor = torch.cat([tensor, tensor.new_zeros(padding)], dim=1 if columns else 0)
        return tensor.to(device=self._device, dtype=self._dtype, memory_format=torch.contiguous_format, copy=True)
