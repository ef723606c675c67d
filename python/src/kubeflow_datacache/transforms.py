# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Ready-made transforms for loaders."""

from __future__ import annotations

import functools
import io
import math
from collections.abc import Callable
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as kind

from kubeflow_datacache.arguments import check_int
from kubeflow_datacache.errors import ColumnError
from kubeflow_datacache.extras import needs

_CHANNELS: Final = {"L": (), "RGB": (3,), "RGBA": (4,)}
_LONGEST: Final = 1 << 16


def decode_images(
    column: str, *, size: tuple[int, int], mode: str = "RGB"
) -> Callable[[pa.RecordBatch], pa.RecordBatch]:
    """A transform that decodes a column of encoded images (JPEG, PNG and others) to uint8.

    column: binary, or structs with a binary "bytes" as the library datasets writes. size: height and width, to which
    Pillow resizes images of another size. mode: "RGB", "RGBA", or "L" for gray. The column becomes a tensor of shape
    (rows, height, width, channels), without channels for "L"; other columns stay the same. Threads of the transform
    decode at the same time. Picklable. Requires Pillow.
    """
    if mode not in _CHANNELS:
        raise ValueError(f"decode_images: mode = {mode!r}: want one of {', '.join(_CHANNELS)}")
    if not isinstance(size, tuple) or len(size) != 2:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise TypeError(f"decode_images: size = {size!r}: want (height, width)")
    height, width = (check_int("size", each, 1, _LONGEST) for each in size)
    return functools.partial(_decoded, column=column, shape=(height, width, *_CHANNELS[mode]), mode=mode)


def _decoded(rows: pa.RecordBatch, *, column: str, shape: tuple[int, ...], mode: str) -> pa.RecordBatch:
    with needs("images", "decode_images()"):
        from PIL import Image  # pyright: ignore[reportMissingImports] - only where images are decoded

    encoded = _encoded(rows, column)
    pixels, size = np.empty((len(encoded), *shape), np.uint8), (shape[1], shape[0])
    for out, image in zip(pixels, encoded, strict=True):
        with Image.open(io.BytesIO(memoryview(image.as_buffer()))) as opened:
            converted = opened.convert(mode)
            out[:] = converted if converted.size == size else converted.resize(size)
    flat = pa.FixedSizeListArray.from_arrays(pa.array(pixels.reshape(-1)), math.prod(shape))
    tensors = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.uint8(), shape), flat)
    at = rows.schema.get_field_index(column)
    return rows.set_column(at, pa.field(column, tensors.type, nullable=False), tensors)


def _encoded(rows: pa.RecordBatch, column: str) -> pa.Array:
    """The encoded images of a column. Raises ColumnError if there are none, or if some are null."""
    if column not in rows.schema.names:
        raise ColumnError(f"decode_images: {column!r} is no column of the batch; there are {rows.schema.names}")
    images = rows[column]
    if kind.is_struct(images.type) and images.type.get_field_index("bytes") >= 0:
        images = pc.struct_field(images, "bytes")
    if not kind.is_binary(images.type) and not kind.is_large_binary(images.type):
        raise ColumnError(f"decode_images: column {column!r} is {images.type}, want binary, or structs with bytes")
    if images.null_count:
        raise ColumnError(
            f"decode_images: column {column!r} has {images.null_count} rows without bytes: leave them out with the"
            " cache's filter, or write the images into the files (datasets: embed_external_files=True)"
        )
    return images
