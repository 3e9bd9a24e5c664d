"""Exceptions of the package. Each message names the problem and a remedy."""


class Error(Exception):
    """Base class of the exceptions of this package."""


class ContiguityError(Error, ValueError):
    """An array has gaps between its elements, or another layout than the other operand."""


class DeviceError(Error, ValueError):
    """An array is on another device than the operator, or a device is not available."""


class DtypeError(Error, TypeError):
    """An argument has another type of elements than the operator, or is no array."""


class FileError(Error, OSError):
    """A file cannot be read or written, or is malformed."""


class GpuError(Error, RuntimeError):
    """A GPU, its driver or its compiler failed."""


class MatrixError(Error, ValueError):
    """Arrays are not those of a matrix, or the matrix does not suit a method."""


class NotConvergedError(Error, ArithmeticError):
    """An iteration did not converge."""


class OutOfMemoryError(Error, MemoryError):
    """The host or the GPU has not enough memory, or a limit is too low."""


class ReadOnlyError(Error, ValueError):
    """An array for a result cannot be written."""


class SettingError(Error, ValueError):
    """A setting is wrong, or two of them contradict each other."""


class ShapeError(Error, ValueError):
    """An array has the wrong number of elements or dimensions."""


class UnsupportedError(Error, TypeError):
    """The plan, the format or the values do not permit an operation."""
