"""Constants of a module: tables that follow from its group."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn


class TabulatedModule(nn.Module):
    """A module with constant tables, which follow its weights to their device and precision and are not in its state
    dict.

    Wherever the module goes, its tables are made anew from exact ones on the CPU. So half precision and back does not
    leave them rounded, and `to_empty` after a start on the meta device does not leave them empty. Nor does
    `load_state_dict(assign=True)`, which gives a module on the meta device weights and asks for no buffers.
    """

    def __init__(self) -> None:
        super().__init__()
        self._exact_tables: dict[str, Tensor] = {}
        self.register_load_state_dict_post_hook(_leave_meta)  # type: ignore[no-untyped-call]

    def add_table(self, name: str, table: Tensor) -> None:
        """Register a table as an attribute: indices, or numbers in double precision."""
        self._exact_tables[name] = table
        dtype = torch.get_default_dtype() if table.is_floating_point() else table.dtype
        self.register_buffer(name, table.to(torch.get_default_device(), dtype), persistent=False)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> TabulatedModule:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        for name, table in self._exact_tables.items():
            self.register_buffer(name, table.to(self.get_buffer(name)), persistent=False)
        return self


def _leave_meta(module: nn.Module, _: object) -> None:
    """Remake tables that are on the meta device, on the default device: where the weights will be is not known here."""
    assert isinstance(module, TabulatedModule)
    for name, table in module._exact_tables.items():
        if (buffer := module.get_buffer(name)).is_meta:
            module.register_buffer(name, table.to(torch.get_default_device(), buffer.dtype), persistent=False)
