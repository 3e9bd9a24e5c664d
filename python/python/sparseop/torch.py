"""Operators in PyTorch: products with gradients, also in compiled functions.

`op @ x` records itself if `x` needs a gradient. :class:`SparseLinear` also takes part in
`torch.compile`, which knows the operator `torch.ops.sparseop.matmul`.
"""

import torch

from ._errors import SettingError
from ._sparseop import numbered


@torch.library.custom_op("sparseop::matmul", mutates_args=())
def _matmul(x: torch.Tensor, handle: int, transposed: bool, rows: int) -> torch.Tensor:
    return numbered(handle, transposed)._apply(x.detach())


@_matmul.register_fake
def _(x, handle, transposed, rows):
    if x.ndim == 2 and not x.is_contiguous():
        # Several vectors, one after the other: the result has them in the same order.
        return x.new_empty((x.shape[1], rows)).t()
    return x.new_empty((rows,) + tuple(x.shape[1:]))


def _setup(ctx, inputs, output):
    _, handle, transposed, _ = inputs
    # Keeps it alive until the backward pass.
    ctx.op = numbered(handle, transposed)


def _backward(ctx, gradient):
    # Autograd decides on the layout of gradients: that of a sum is one number with strides of 0.
    if not (gradient.is_contiguous() or (gradient.ndim == 2 and gradient.t().is_contiguous())):
        gradient = gradient.contiguous()
    return matmul(ctx.op.T, gradient), None, None, None


_matmul.register_autograd(_backward, setup_context=_setup)


def matmul(op, x):
    """`op @ x` for a tensor of shape (n,) or (n, k), with gradients for `x`.

    The backward pass multiplies with the transposed matrix, which has a plan of its own. It copies
    a gradient that has gaps, as that of a sum, and nothing else.
    """
    return torch.ops.sparseop.matmul(x, op._handle, op._transposed, op.shape[0])


def _recorded(op, x, out, alpha, beta, copy):
    if out is not None:
        raise SettingError("`out` has no gradient; leave it out, or use torch.no_grad()")
    if beta != 0:
        raise SettingError("`beta` needs an `out`, which it multiplies")
    device = x.device
    if copy:
        dtype = getattr(torch, str(op.dtype))
        x = x.to(torch.device(op.device), dtype).resolve_neg().contiguous()
    y = matmul(op, x).to(device)
    return y if alpha == 1 else alpha * y


class SparseLinear(torch.nn.Module):
    """A layer that multiplies with a fixed matrix: `x` of shape (n,) or (n, k) becomes A x."""

    def __init__(self, op):
        super().__init__()
        self.op = op
        # Numbers, which the compiler understands.
        self._handle, self._transposed, self._rows = op._handle, op._transposed, op.shape[0]

    def forward(self, x):
        return torch.ops.sparseop.matmul(x, self._handle, self._transposed, self._rows)

    def extra_repr(self):
        return repr(self.op)
