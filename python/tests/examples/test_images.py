# Copyright The Kubeflow Authors.
# SPDX-License-Identifier: Apache-2.0
"""Images that datasets stored in Parquet files, decoded in the threads of a loader."""

from __future__ import annotations

import io
import pickle
from pathlib import Path

import datasets
import numpy as np
import pyarrow as pa
import pytest
from PIL import Image, UnidentifiedImageError

from kubeflow_datacache import ColumnError, DataCache
from kubeflow_datacache.transforms import decode_images

ROWS, SIZE = 12, (6, 4)
IMAGES = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
WHERE = (1, 2)  # a pixel, by row and column


def picture(i: int, size: tuple[int, int] = SIZE) -> Image.Image:
    """An image in which a pixel tells its number."""
    pixels = np.full((*size, 3), i, np.uint8)
    pixels[WHERE] = (i, 2 * i, 255)
    return Image.fromarray(pixels)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A data set with the features that datasets knows."""
    grid = datasets.Array2D((2, 3), "float32")
    features = {"img": datasets.Image(), "label": datasets.ClassLabel(names=["even", "odd"]), "grid": grid}
    rows = {
        "img": [picture(i) for i in range(ROWS)],
        "label": [i % 2 for i in range(ROWS)],
        "grid": [np.full((2, 3), i, np.float32) for i in range(ROWS)],
    }
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).to_parquet(tmp_path / "0.parquet")
    return tmp_path


def test_images_of_datasets(server: Path, folder: Path) -> None:
    ways: dict[str, tuple[int, ...]] = {"RGB": (3,), "RGBA": (4,), "L": ()}
    with DataCache.local(folder, program=server, progress=False) as cache:
        assert cache.class_names("label") == ["even", "odd"]
        for mode, channels in ways.items():
            decode = decode_images("img", size=SIZE, mode=mode)
            (batch,) = cache.loader(global_batch_size=ROWS, seed=3, transform=decode)
            got = batch.torch()
            assert got["img"].shape == (ROWS, *SIZE, *channels)
            want = np.stack([np.asarray(picture(int(i)).convert(mode)) for i in batch.indices])
            np.testing.assert_array_equal(got["img"].numpy(), want)
            assert got["label"].tolist() == [i % 2 for i in batch.indices]
            assert got["grid"].shape == (ROWS, 2, 3), "datasets stores its arrays as lists of lists"
            assert got["grid"][:, 1, 2].tolist() == batch.indices.tolist()


def encoded(image: Image.Image) -> bytes:
    out = io.BytesIO()
    image.save(out, "PNG")
    return out.getvalue()


def test_images_of_another_size_are_resized() -> None:
    rows = pa.record_batch({"img": pa.array([encoded(picture(9, (12, 8))), encoded(picture(9))])})
    got = pickle.loads(pickle.dumps(decode_images("img", size=SIZE)))(rows)["img"].to_numpy_ndarray()
    np.testing.assert_array_equal(got[0], np.asarray(picture(9, (12, 8)).resize((SIZE[1], SIZE[0]))))
    np.testing.assert_array_equal(got[1], np.asarray(picture(9)))
    assert decode_images("img", size=SIZE)(rows[:0])["img"].type.shape == [*SIZE, 3]


def test_what_is_no_image_is_said() -> None:
    for options, kind, says in (
        ({"mode": "CMYK"}, ValueError, "want one of L, RGB, RGBA"),
        ({"size": 7}, TypeError, "want .height, width."),
        ({"size": (0, 7)}, ValueError, "size = 0"),
    ):
        with pytest.raises(kind, match=says):
            decode_images("img", **{"size": SIZE, **options})  # pyright: ignore[reportArgumentType] - the test passes a wrong argument
    missing = pa.record_batch({"img": pa.array([{"bytes": None, "path": "a.png"}], IMAGES), "n": [1]})
    for column, says in {"image": "no column", "n": "want binary", "img": "1 rows without bytes"}.items():
        with pytest.raises(ColumnError, match=says):
            decode_images(column, size=SIZE)(missing)
    with pytest.raises(UnidentifiedImageError, match="cannot identify image file"):
        decode_images("img", size=SIZE)(pa.record_batch({"img": pa.array([b"GIF89"])}))
