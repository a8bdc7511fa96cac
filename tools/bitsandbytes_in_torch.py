"""bitsandbytes with its kernels in torch (its backend "default"), which compare with the middles between values as its CUDA kernels do. Its
library for the CPU is not loaded: there, quantize_blockwise goes through a table of 65536 steps, coarser than the smallest of the 256 values.

    from bitsandbytes_in_torch import F, bitsandbytes        before torch is imported
"""
import ctypes
import os

os.environ["TORCHDYNAMO_DISABLE"] = "1"
load_library = ctypes.cdll.LoadLibrary


def refuse(*_):
    raise OSError("not used: see above")


ctypes.cdll.LoadLibrary = refuse
import bitsandbytes
import bitsandbytes.functional as F

ctypes.cdll.LoadLibrary = load_library
