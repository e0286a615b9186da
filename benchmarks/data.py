"""Loading data: seconds and peak memory, beside Hugging Face's `datasets` in the same run.

    python benchmarks/data.py --data-root DATA [--hf-python PYTHON]

Every figure is from a separate process; imports are not counted. PYTHON is an interpreter with `datasets`
(this one if not given); without it that column stays empty.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

OURS = """
import json, resource, sys, time
from pathlib import Path
import numpy, PIL.Image, pyarrow.parquet, safetensors.torch, torch
from uqgan.data.sets import load_part
from uqgan.data.tasks import load_task
what, place = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
if what == "set":
    parts = [load_part("cifar10", part, 32, 3, Path(place)) for part in ("train", "test")]
    size = sum(part.x.numel() for part in parts)
else:
    task = load_task(place if what == "folder" else what, root=None if what == "folder" else place)
    parts = [task.train.x, task.validation.x, task.calibration.x, task.test.x, *task.ood.values(),
             *task.outliers.values(), *task.ood_validation.values()]
    size = sum(x.numel() for x in parts)
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"seconds": seconds, "peak": peak * 1024, "size": size}))
"""
THEIRS = """
import json, resource, sys, time
import numpy as np
import PIL.Image
from datasets import load_dataset
what, place, cache = sys.argv[1:]
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
start = time.perf_counter()
if what == "set":
    sets = load_dataset(place + "/cifar10", cache_dir=cache)
    splits = [sets[split].with_format("numpy") for split in ("train", "train_ood", "test")]
else:
    splits = [load_dataset("imagefolder", data_dir=place, split="train", cache_dir=cache).with_format("numpy")]
size = 0
for split in splits:
    x = np.concatenate([np.stack(batch["image"]) for batch in split.iter(1000)])
    size += x.size
seconds = time.perf_counter() - start
peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
print(json.dumps({"seconds": seconds, "peak": peak * 1024, "size": size}))
"""


def measure(python: str, code: str, cache: Path, *words: str) -> dict[str, float] | None:
    environment = os.environ | {
        "UQGAN_CACHE": str(cache),
        "HF_HUB_OFFLINE": "1",
        "HF_DATASETS_DISABLE_PROGRESS_BARS": "1",
    }
    done = subprocess.run([python, "-c", code, *words], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr.splitlines()[-1] + "\n")
        return None
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def make_folder(root: Path, n: int) -> None:
    import numpy as np
    from PIL import Image

    rng = np.random.default_rng(0)
    for k in range(10):
        (root / f"class {k}").mkdir(parents=True)
        for i in range(n // 10):
            Image.fromarray(rng.integers(0, 256, (28, 28), dtype=np.uint8)).save(root / f"class {k}" / f"{i}.png")


def cell(found: dict[str, float] | None) -> str:
    if not found:
        return f"{'-':>24}"
    return f"{found['seconds']:6.2f} s {found['peak'] / 2**20:6.0f} MB {found['peak'] / found['size']:5.1f} x"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", default=os.environ.get("UQGAN_DATA"))
    parser.add_argument("--hf-python", default=sys.executable)
    parser.add_argument("--files", type=int, default=6000, help="pictures of the image folder")
    options = parser.parse_args()
    print("peak memory is that above the imports, and as a multiple of the pictures' own size")
    tried = subprocess.run([options.hf_python, "-c", "import datasets"], capture_output=True, check=False)
    beside = tried.returncode == 0
    if not beside:
        print("datasets is not installed here: its column stays empty (--hf-python names an interpreter that has it)")
    print(f"{'':42}{'uqgan':>25}{'datasets':>25}")
    with tempfile.TemporaryDirectory() as place:
        cache, theirs = Path(place) / "cache", str(Path(place) / "hf")
        folder = Path(place) / "photos"
        make_folder(folder, options.files)
        rows = [(f"folder of {options.files:,} files", "folder", str(folder), True)]
        if options.data_root:
            rows += [("CIFAR10: 36,500 pictures", "set", options.data_root, True)]
            rows += [(f"task {name}, OoD sets too", name, options.data_root, False) for name in ("cifar10", "mnist")]
        for title, what, where, both in rows:
            for turn in ("first time", "again"):
                ours = measure(sys.executable, OURS, cache, what, where)
                other = measure(options.hf_python, THEIRS, cache, what, where, theirs) if both and beside else None
                print(f"{title + ', ' + turn:42}{cell(ours):>25}{cell(other):>25}", flush=True)


if __name__ == "__main__":
    main()
