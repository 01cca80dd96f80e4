"""Products by weights of 2, 4 and 8 bits in blocks."""

from collections.abc import Iterator

import numpy as np

from eqsat.calibrate.case import Cases, Kernels, data, value, weight


def few_bits() -> Iterator[Cases]:
    """Products with weights of 4 and 8 bits in blocks, rows rounded to 8 bits or not, and dequantising them beforehand."""
    f = "float32"
    sizes = [
        *((rows, k, n, 32) for rows in (1, 16, 128) for k, n in ((768, 768), (768, 3072), (3072, 768))),
        *((rows, 2048, 2048, block) for rows in (1, 16, 128) for block in (32, 128)),
    ]
    small = [(rows, k, n, 32) for rows in (1, 2, 16, 128) for k, n in ((64, 64), (64, 256), (256, 512), (512, 1024))]
    for bits, level, zeros, grid in (
        (4, 0, True, sizes),
        (4, 0, False, small),
        (4, 4, False, [*small, *sizes]),
        (4, 4, True, sizes[::2]),
        (8, 4, False, [*small, *sizes][::2]),
    ):
        yield Kernels(
            "com.microsoft::MatMulNBits",
            grid,
            lambda rows, k, n, block, bits=bits, zeros=zeros: [
                data(f, 1, rows, k),
                weight("uint8", n, k // block, block * bits // 8),
                weight(f, n, k // block),
                *([weight("uint8", n, k // block * bits // 8)] if zeros else []),
            ],
            lambda rows, k, n, block, bits=bits, level=level: {
                "K": k, "N": n, "bits": bits, "block_size": block, "accuracy_level": level,
            },
        )  # fmt: skip
    yield Kernels(
        "DequantizeLinear",
        sizes,
        lambda rows, k, n, block: [value("int4", np.arange(k * n).reshape(k, n) % 16 - 8), weight(f, k // block, n)],
        lambda rows, k, n, block: {"axis": 0, "block_size": block},
    )
