"""Operators as the arrays and settings that they are built from again: for copies and pickles."""

import operator

from ._build import built


def state(op):
    """A function and its arguments, which make an operator with the same entries, plan, settings
    and device."""
    if op._transposed:
        return operator.attrgetter("T"), (op.T,)
    shape, *arrays = op._to_csr()
    return built, (shape, arrays, op._order, op._settings, op.copies)


def duplicate(op):
    """An operator with values of its own."""
    if op._transposed:
        return duplicate(op.T).T
    function, arguments = state(op)
    return function(*arguments)
