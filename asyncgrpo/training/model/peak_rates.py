"""The peak of a device: dense matrix products per second, by name and type.

    "NVIDIA H100 80GB HBM3", bfloat16  ->  989.4e12

From the vendors' data sheets, without structured sparsity and with float32 accumulation. A device
or a type that is not here has no peak, and so no MFU.
"""

from typing import Final, NamedTuple

import torch


class _Rates(NamedTuple):
    """TFLOP/s; None = the device does not have it."""

    half: float | None  # bfloat16 and float16
    tf32: float | None
    single: float


# Part of the device's name -> rates; the first match counts, so the longer names come first.
RATES: Final[dict[str, _Rates]] = {
    "GB200": _Rates(2500.0, 1250.0, 80.0),
    "B200": _Rates(2250.0, 1125.0, 75.0),
    "H200 NVL": _Rates(835.5, 417.5, 60.0),
    "GH200": _Rates(989.4, 494.7, 66.9),
    "H200": _Rates(989.4, 494.7, 66.9),
    "H100 NVL": _Rates(835.5, 417.5, 60.0),
    "H100 PCIe": _Rates(756.5, 378.0, 51.2),
    "H100": _Rates(989.4, 494.7, 66.9),
    "H800": _Rates(989.4, 494.7, 66.9),
    "H20": _Rates(148.0, 74.0, 44.0),
    "A100": _Rates(312.0, 156.0, 19.5),
    "A800": _Rates(312.0, 156.0, 19.5),
    "A40": _Rates(149.7, 74.8, 37.4),
    "A30": _Rates(165.0, 82.0, 10.3),
    "A10G": _Rates(70.0, 35.0, 35.0),
    "A10": _Rates(125.0, 62.5, 31.2),
    "L40S": _Rates(362.1, 183.0, 91.6),
    "L40": _Rates(181.1, 90.5, 90.5),
    "L4": _Rates(121.0, 60.0, 30.3),
    "RTX 6000 Ada": _Rates(364.2, 182.1, 91.1),
    "RTX A6000": _Rates(154.8, 77.4, 38.7),
    "RTX 5090": _Rates(209.5, 104.8, 104.8),
    "RTX 4090": _Rates(165.2, 82.6, 82.6),
    "RTX 3090": _Rates(71.0, 35.6, 35.6),
    "MI325X": _Rates(1307.4, 653.7, 163.4),
    "MI300X": _Rates(1307.4, 653.7, 163.4),
}
TERA: Final = 1e12
PARTS: Final = frozenset({"MIG", "Laptop"})  # less than the device whose name they carry


def peak_rate(device: torch.device, dtype: torch.dtype) -> float | None:
    """FLOP/s of the device for matrix products of `dtype`; None where it is not known."""
    if device.type != "cuda":
        return None
    tf32 = torch.get_float32_matmul_precision() != "highest"
    return rate_of(torch.cuda.get_device_name(device), dtype, tf32=tf32)


def rate_of(name: str, dtype: torch.dtype, *, tf32: bool = False) -> float | None:
    """FLOP/s by the device's name; `tf32` = float32 products may be rounded to it."""
    rates = next((rates for part, rates in RATES.items() if _names(part, name)), None)
    if rates is None:
        return None
    if dtype in (torch.bfloat16, torch.float16):
        rate = rates.half
    elif dtype == torch.float32:
        rate = rates.tf32 if tf32 else rates.single
    else:
        rate = None
    return None if rate is None else rate * TERA


def _names(part: str, name: str) -> bool:
    """True if the name has the part as whole words: A10 is not in A100."""
    words, wanted = name.replace("-", " ").split(), part.split()
    return not PARTS & set(words) and any(
        words[i : i + len(wanted)] == wanted for i in range(len(words))
    )
