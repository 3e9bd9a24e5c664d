"""NVRTC, the compiler of kernels, from the Python packages that contain it."""

import functools


def libraries():
    """Files of NVRTC in packages such as `nvidia-cuda-nvrtc`, the latest version first."""
    import importlib.util
    import pathlib

    try:
        spec = importlib.util.find_spec("nvidia")
    except (ImportError, ValueError):
        spec = None
    folders = list(spec.submodule_search_locations or []) if spec else []
    folders = map(pathlib.Path, folders)
    files = [file for folder in folders for file in folder.glob("*/lib/libnvrtc.so.*")]
    versions = [file for file in files if file.suffix[1:].isdigit()]
    return sorted(versions, key=lambda file: int(file.suffix[1:]), reverse=True)


@functools.cache
def prepare():
    """Loads NVRTC, unless the system's own is found: the library then finds it by its name."""
    import ctypes

    for name in ("libnvrtc.so", "libnvrtc.so.13", "libnvrtc.so.12"):
        try:
            ctypes.CDLL(name)
            return
        except OSError:
            pass
    for file in libraries():
        try:
            ctypes.CDLL(str(file), mode=ctypes.RTLD_GLOBAL)
            return
        except OSError:
            pass
