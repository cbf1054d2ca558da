"""Which devices `device=` and `devices=` name."""

from __future__ import annotations

from typing import Any

from pymm.backends import available_devices
from pymm.backends.base import Backend
from pymm.core.errors import NoDevice
from pymm.runtime.bind import open_backend

#: What names all GPUs of the host.
ALL = "cuda:all"


def names_several(device: Any) -> bool:
    """Whether `device=` names devices instead of one."""
    return isinstance(device, list | tuple) or (isinstance(device, str) and device == ALL)


def open_devices(device: Any) -> list[Backend]:
    """The devices that `device=` names: "cuda:all", a list, or one as for `open_device`.

    Raises `NoDevice`; `ValueError` for an empty list and for a device that is named twice.
    """
    if isinstance(device, str) and device == ALL:
        gpus = [one for one in available_devices() if not one.shares_host_memory]
        if not gpus:
            raise NoDevice(f"device={ALL!r}: this machine has no GPU that CUDA may use")
        return [open_backend(one.index) for one in gpus]
    if not isinstance(device, list | tuple):
        return [open_backend(device)]
    if not device:
        raise ValueError("device=[] names no device; 'cuda:all' names all GPUs")
    backends = [open_backend(one) for one in device]
    if len({id(one) for one in backends}) < len(backends):
        raise ValueError(f"device={device!r} names a device twice")
    return backends
