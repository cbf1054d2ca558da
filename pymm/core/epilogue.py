"""What is done to a product when it is stored: a bias is added and an activation applied, in the
kernel that computes it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

#: The activations by name, and the number that kernels know each by (common/epilogue.cuh). "gelu"
#: is x Phi(x) with the error function, "gelu_tanh" its approximation with tanh.
ACTIVATIONS = {"relu": 1, "gelu": 2, "gelu_tanh": 3, "silu": 4}


@dataclass(frozen=True)
class Epilogue:
    """C <- activation(alpha op(A) op(B) + beta C + bias): the name of the activation, "" for none;
    the dtype of the bias, None for none. The bias has an element for each column of C, or, if it
    goes `down`, for each row.
    """

    activation: str = ""
    bias: np.dtype | None = None
    down: bool = False

    def __bool__(self) -> bool:
        return bool(self.activation) or self.bias is not None

    def __str__(self) -> str:
        words = [self.activation] if self.activation else []
        return " of ".join([*words, "the sum with a bias"] if self.bias is not None else words)

    def transposed(self) -> Epilogue:
        """The epilogue of C^T."""
        return replace(self, down=not self.down) if self.bias is not None else self


#: A product that is stored as it is.
NO_EPILOGUE = Epilogue()
