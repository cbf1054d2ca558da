"""A stand-in for PyTorch: as much of it as pymm asks for, with tensors on the device of
`host_device`. Its tensors have the negative bit and gradients, with PyTorch's rules for both.
"""

from types import SimpleNamespace

import numpy as np
from host_device import CudaArray


class Torch:
    """What stands in `sys.modules["torch"]`."""

    float32, float64 = "float32", "float64"
    stream = 5
    recording = True

    @staticmethod
    def is_grad_enabled():
        return Torch.recording

    @staticmethod
    def empty(shape, dtype, device):
        return Torch.Tensor(np.empty(shape, dtype))

    class cuda:  # noqa: N801
        @staticmethod
        def current_stream(device):
            return SimpleNamespace(cuda_stream=Torch.stream)

    class Tensor:
        device = SimpleNamespace(index=0)

        def __init__(self, array, negative=False, requires_grad=False):
            self.array, self.negative, self.requires_grad = array, negative, requires_grad
            self.shape, self.dtype = array.shape, f"torch.{array.dtype}"

        @property
        def value(self):
            """The elements as PyTorch shows them."""
            return -self.array if self.negative else self.array

        @property
        def __cuda_array_interface__(self):
            if self.requires_grad:
                raise RuntimeError("Can't get __cuda_array_interface__ on Variable")
            return CudaArray(self.array, version=2).__cuda_array_interface__

        def detach(self):
            return type(self)(self.array, self.negative)

        def new_empty(self, shape, dtype):
            return Torch.empty(shape, dtype, None)

        def is_neg(self):
            return self.negative

        def get_device(self):
            return 0

        def data_ptr(self):
            return self.array.__array_interface__["data"][0]

        def stride(self):
            return tuple(step // self.array.itemsize for step in self.array.strides)


Torch.Tensor.__module__ = "torch"
Torch.Parameter = type("Parameter", (Torch.Tensor,), {"__module__": "torch.nn.parameter"})
Torch.Subclass = type("Subclass", (Torch.Tensor,), {"__module__": "somebodys.own"})
