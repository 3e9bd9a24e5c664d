"""Operators in PyTorch: products with gradients, also in compiled functions.

`op @ x` records itself if `x` needs a gradient or has a tangent, and takes part in the transforms
of `torch.func`. :class:`SparseLinear` also takes part in `torch.compile`, which knows the operator
`torch.ops.sparseop.matmul`.
"""

from __future__ import annotations

from typing import Any

import torch

from . import Operator
from ._copies import refuse_complex
from ._errors import SettingError, UnsupportedError
from ._sparseop import numbered


def _dense(values: torch.Tensor) -> torch.Tensor:
    """Values without gaps. Autograd decides on the layout of gradients: that of a sum is one number
    with strides of 0."""
    if values.is_contiguous() or (values.ndim == 2 and values.t().is_contiguous()):
        return values
    return values.contiguous()


class _Product(torch.autograd.Function):
    """`op @ x`, as autograd and the transforms of `torch.func` take it."""

    @staticmethod
    def forward(x, op):
        try:
            return op._apply(x)
        except UnsupportedError:
            # The dispatcher takes batches of gradients apart, as of `is_grads_batched`.
            return _dispatched(op, x)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.op = inputs[1]

    @staticmethod
    def backward(ctx, gradient):
        return _Product.apply(_dense(gradient), ctx.op.T), None

    @staticmethod
    def jvp(ctx, tangent, _):
        return _Product.apply(_dense(tangent), ctx.op)

    @staticmethod
    def vmap(info, dims, x, op):
        x = x.movedim(dims[0], -1)
        # As several vectors: those of a batch that has them one after the other are not moved.
        columns = x.flatten(1) if 2 <= x.ndim <= 3 else x
        y = _Product.apply(_dense(columns), op)
        return y.unflatten(1, x.shape[1:]), x.ndim - 1


# The same product for compilers, which trace neither the class of the operator nor the above.
@torch.library.custom_op("sparseop::matmul", mutates_args=())
def _matmul(x: torch.Tensor, handle: int, transposed: bool, rows: int) -> torch.Tensor:
    return numbered(handle, transposed)._apply(x.detach())


@_matmul.register_fake
def _(x, handle, transposed, rows):
    if x.ndim == 2 and not x.is_contiguous():
        # Several vectors, one after the other: the result has them in the same order.
        return x.new_empty((x.shape[1], rows)).t()
    return x.new_empty((rows,) + tuple(x.shape[1:]))


def _dispatched(op, x):
    return torch.ops.sparseop.matmul(x, op._handle, op._transposed, op.shape[0])


def _setup(ctx, inputs, output):
    _, handle, transposed, _ = inputs
    # Keeps it alive until the backward pass.
    ctx.op = numbered(handle, transposed)


def _backward(ctx, gradient):
    return _dispatched(ctx.op.T, _dense(gradient)), None, None, None


_matmul.register_autograd(_backward, setup_context=_setup)


def matmul(op: Operator, x: torch.Tensor) -> torch.Tensor:
    """`op @ x` for a tensor of shape (n,) or (n, k), with gradients and tangents for `x`.

    The backward pass multiplies with the transposed matrix, which has a plan of its own. Gradients,
    tangents and batches of `torch.vmap` are copied if they have gaps, as that of a sum has, and
    nothing else.
    """
    return _Product.apply(x, op)


def _recorded(op, x, out, alpha, beta, copy):
    if out is not None:
        raise SettingError("`out` has no gradient; leave it out, or use torch.no_grad()")
    if beta != 0:
        raise SettingError("`beta` needs an `out`, which it multiplies")
    device = x.device
    if copy:
        refuse_complex(x)
        dtype = getattr(torch, str(op.dtype))
        x = x.to(torch.device(op.device), dtype).resolve_neg().contiguous()
    y = matmul(op, x).to(device)
    return y if alpha == 1 else alpha * y


class SparseLinear(torch.nn.Module):
    """A layer that multiplies with a fixed matrix: `x` of shape (n,) or (n, k) becomes A x."""

    def __init__(self, op: Operator) -> None:
        super().__init__()
        self.op = op
        self._number()

    def _number(self):
        """Keeps numbers of the operator, which the compiler understands."""
        op = self.op
        self._handle, self._transposed, self._rows = op._handle, op._transposed, op.shape[0]

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        # A copy has an operator of its own.
        self._number()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            return torch.ops.sparseop.matmul(x, self._handle, self._transposed, self._rows)
        return matmul(self.op, x)

    def extra_repr(self) -> str:
        return repr(self.op)
