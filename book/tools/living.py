"""Write what the living model's page needs: the exact language, and the weights at six moments.

`python -m book.tools.living` writes book/static/living from the same trainings that the chapters
use. A browser may not fetch a file from the disk, so each is a script that hands over its content:
`language.js` the sentences with their probabilities, sizes and shapes, `step-800.js` the weights
before that step, as float16, sorted into low and high bytes, gzipped, in base64.
"""

import base64
import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch

from book.tools.common import ROOT, run_command
from transformer_block.fingerprint import fingerprint
from transformer_block.language import ToyLanguage, toy_language
from transformer_block.language_model import LanguageModel
from transformer_block.training import Job, run_job

FOLDER = ROOT / "book" / "static" / "living"
MOMENTS = (0, 50, 100, 200, 400, 800)
JOB = Job(seed=7, keep_at=MOMENTS)


def halved(model: LanguageModel) -> bytes:
    """Return all weights, one after another in the order of `state_dict`, as float16."""
    flat = [tensor.half().flatten() for tensor in model.state_dict().values()]
    return torch.cat(flat).numpy().astype("<f2").tobytes()


def pack(halves: bytes) -> str:
    """Return float16 numbers as text: low bytes, then high bytes (they repeat), gzip, base64.

    >>> unpack(pack(bytes(range(8)))) == bytes(range(8))
    True
    """
    planes = np.frombuffer(halves, np.uint8).reshape(-1, 2).T.tobytes()
    return base64.b64encode(gzip.compress(planes, compresslevel=9, mtime=0)).decode()


def unpack(text: str) -> bytes:
    """Return the float16 numbers that `pack` was given."""
    planes = np.frombuffer(gzip.decompress(base64.b64decode(text)), np.uint8)
    return planes.reshape(2, -1).T.tobytes()


def told(language: ToyLanguage) -> list[dict[str, Any]]:
    """Return the families: name, weight, and the sentences under their probability."""
    families = []
    for family in language.families:
        sentences: dict[float, list[str]] = {}
        for words, (p, _) in family.parsed.items():
            sentences.setdefault(p, []).append(" ".join(words))
        families.append(
            {"name": family.name, "weight": family.weight, "sentences": [*sentences.items()]}
        )
    return families


def made_from() -> str:
    """Return a digest of the code that decides the weights and the sentences."""
    return fingerprint("transformer_block.training.jobs.Job")


def files() -> dict[str, str]:
    """Return the content of every file, by name; trains where no weights are kept."""
    run, language = run_job(JOB), toy_language()
    halves = {step: halved(run.at(step)) for step in MOMENTS}
    made = {
        f"step-{step}.js": f'livingModel.take({step}, "{pack(data)}");\n'
        for step, data in halves.items()
    }
    sizes = ("n_ctx", "d_model", "n_heads", "n_layers")
    facts = {
        "made_from": made_from(),
        "made_with": [torch.__version__, torch.backends.cpu.get_cpu_capability()],
        "seed": JOB.seed,
        "digests": {step: hashlib.sha256(data).hexdigest() for step, data in halves.items()},
        "letters": {step: len(made[f"step-{step}.js"]) for step in MOMENTS},
        "sizes": {name: getattr(run.model.config, name) for name in sizes},
        "shapes": {name: list(tensor.shape) for name, tensor in run.model.state_dict().items()},
        "vocabulary": language.vocabulary,
        "families": told(language),
    }
    lines = ",\n".join(
        f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in facts.items()
    )
    return {"language.js": f"var livingModel = {{\n{lines}\n}};\n", **made}


def model_at(step: int, folder: Path = FOLDER) -> LanguageModel:
    """Return the model of one moment with the page's own weights, in float32."""
    model = JOB.model()
    numbers = torch.from_numpy(np.frombuffer(weights(step, folder), "<f2").astype(np.float32))
    start = 0
    for tensor in model.state_dict().values():
        tensor.copy_(numbers[start : start + tensor.numel()].view_as(tensor))
        start += tensor.numel()
    return model.requires_grad_(False)


def facts(folder: Path = FOLDER) -> dict[str, Any]:
    """Return what `language.js` says."""
    text = (folder / "language.js").read_text("utf-8")
    return json.loads(text.removeprefix("var livingModel = ").rstrip(";\n"))


def weights(step: int, folder: Path = FOLDER) -> bytes:
    """Return the float16 numbers of one moment, as the page gets them."""
    return unpack((folder / f"step-{step}.js").read_text("utf-8").split('"')[1])


def main() -> None:
    """Write the files that have changed."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        path = FOLDER / name
        if not path.is_file() or path.read_text("utf-8") != text:
            path.write_text(text, "utf-8", newline="\n")
            print(f"{path.relative_to(ROOT)}: {len(text):,} characters")


if __name__ == "__main__":
    run_command(main)
