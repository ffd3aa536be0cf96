"""Try the installed package: every file of the sources is in it, and it works."""

import sys
from importlib.util import find_spec
from pathlib import Path

import torch

import transformer_block as tb

sources, extras = Path(sys.argv[1]) / "transformer_block", sys.argv[2]
installed = Path(tb.__file__).parent
if installed.is_relative_to(sources.parent):
    sys.exit(f"this is not the wheel: {installed}")
wanted = {
    path.relative_to(sources)
    for path in sources.rglob("*")
    if path.is_file() and path.suffix in {".py", ".svg", ".json", ".typed"}
}
if missing := [str(path) for path in sorted(wanted) if not (installed / path).is_file()]:
    sys.exit(f"the wheel lacks {', '.join(missing)}")

model = tb.LanguageModel(tb.toy_config())
ids = torch.tensor([[1, 2, 3]])
if model(ids).shape[:2] != ids.shape:
    sys.exit("the model's logits have another shape than its ids")
if extras == "notebook":
    from transformer_block import figures
    from transformer_block.notebook import quiz, study, verify

    if "<svg" not in figures.block("W_O").svg or not callable(quiz) or not callable(study):
        sys.exit("the notebook's helpers do not work")
    verify("the wheel draws the block", True)
elif find_spec("IPython"):
    sys.exit("the environment was not empty: IPython is in it")
print(f"the wheel works ({extras}), with all {len(wanted)} files")
