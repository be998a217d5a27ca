"""Small models of random weights that llama.cpp serves like any other, and the hub's repositories of them.

To add one: a `ModelSpec` in `SPECS`. To add an architecture: an entry in `architectures.py`. Files are made
once, in the cache; their bytes depend on the spec and the gguf package alone (seeded raw PCG64 output, not a
distribution whose stream may change between numpy versions).
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import version
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tests.lab import architectures, paths, recipe
from tests.lab.architectures import ARCHITECTURES
from tests.lab.hub import HubFile, HubRepo

Weights = npt.NDArray[np.float32]

GATED_TOKEN = "hf_lab_stand_in"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> {{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)
_LETTERS = "▁" + "".join(chr(code) for code in range(33, 127))
_STEPS_STD = 73.9  # standard deviation of a uniform int8


@dataclass(frozen=True)
class ModelSpec:
    """Shape of a model.

    `heads_kv` is one number or one for each layer; `shards` the number of files, with about as many tensors
    each. `key_length` is the size of a head where that is not embedding / heads. `dtype` is that of matrices
    (F16 or Q8_0; other tensors are F32). `more` is metadata under the architecture's prefix, for what an
    architecture wants beyond the common hyperparameters.
    """

    name: str
    embedding: int
    layers: int
    heads: int
    heads_kv: int | tuple[int, ...]
    feed_forward: int
    architecture: str = "llama"
    context: int = 4096
    dtype: str = "F16"
    shards: int = 1
    gated: bool = False
    key_length: int | None = None
    seed: int = 1
    more: dict[str, int | float | bool | list[int]] = field(default_factory=dict)

    @property
    def repo(self) -> str:
        """Its repository on the stand-in hub."""
        return f"standin/{self.name}-GGUF"

    @property
    def stem(self) -> str:
        """File name without shard number and ending."""
        return f"{self.name}-{self.dtype}"

    @property
    def head_size(self) -> int:
        """Elements of one head's key and value."""
        return self.key_length or self.embedding // self.heads

    def kv_heads(self, layer: int) -> int:
        """Key and value heads of a layer."""
        return self.heads_kv if isinstance(self.heads_kv, int) else self.heads_kv[layer]


SPECS = (
    ModelSpec("tiny-a", embedding=64, layers=4, heads=4, heads_kv=4, feed_forward=192, seed=1),
    ModelSpec("tiny-b", embedding=128, layers=6, heads=8, heads_kv=2, feed_forward=256, context=8192, seed=2),
    # Large enough that tokens per second mean something on a CPU, small enough to be written in a second.
    ModelSpec("small-c", 768, 12, 12, 4, 2048, context=32768, dtype="Q8_0", seed=3),
    ModelSpec("shards-d", embedding=128, layers=6, heads=8, heads_kv=4, feed_forward=256, shards=3, seed=4),
    ModelSpec("gated-e", embedding=64, layers=2, heads=4, heads_kv=4, feed_forward=192, gated=True, seed=5),
)
# Not on the hub: other ways to keep a context, for the memory plan.
OTHER_KINDS = (
    ModelSpec(
        "sliding-f", 128, 8, 4, 2, 256, "gemma3", context=32768, key_length=64, seed=6,
        more={"attention.sliding_window": 512},
    ),
    ModelSpec("hybrid-g", 128, 8, 4, 2, 256, "qwen35", context=32768, key_length=64, seed=7),
)  # fmt: skip


@dataclass(frozen=True)
class ModelFile:
    """One file of a model on the hub. `bytes` and `sha256` are those of the file."""

    name: str
    repo: str
    revision: str
    file: str
    bytes: int
    sha256: str


def ensure(spec: ModelSpec) -> tuple[Path, ...]:
    """The model's files in the cache, made when absent."""
    key = recipe.content_key(asdict(spec), Path(__file__), Path(str(architectures.__file__)), version("gguf"))
    folder = paths.cache() / "models" / f"{spec.name}-{key}"
    if not folder.exists():
        for old in folder.parent.glob(f"{spec.name}-*"):
            shutil.rmtree(old)
        part = folder.with_name(folder.name + ".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(spec, part)
        part.replace(folder)
    return tuple(sorted(folder.iterdir()))


def write(spec: ModelSpec, folder: Path) -> None:
    """Write the model's GGUF files to an existing folder, which keeps nothing else."""
    tensors = list(_tensors(spec))
    split = -(-len(tensors) // spec.shards) if spec.shards > 1 else 0
    writer = gguf.GGUFWriter(folder / f"{spec.stem}.gguf", spec.architecture, split_max_tensors=split)
    _metadata(spec, writer)
    ARCHITECTURES[spec.architecture].hyperparameters(spec, writer)
    stream = np.random.PCG64(spec.seed)
    for name, shape in tensors:
        values = _values(stream, name, shape)
        if len(shape) == 1 or shape[-1] % 32:  # no row of whole blocks
            writer.add_tensor(name, values)
        elif spec.dtype == "F16":
            writer.add_tensor(name, values.astype(np.float16))
        else:
            kind = gguf.GGMLQuantizationType[spec.dtype]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _tensors(spec: ModelSpec) -> Iterator[tuple[str, tuple[int, ...]]]:
    tokens, architecture = len(_vocabulary()[0]), ARCHITECTURES[spec.architecture]
    yield "token_embd.weight", (tokens, spec.embedding)
    for index in range(spec.layers):
        for name, shape in architecture.layer(spec, index):
            yield f"blk.{index}.{name}", shape
    yield "output_norm.weight", (spec.embedding,)
    if not architecture.tied:
        yield "output.weight", (tokens, spec.embedding)


def _values(stream: np.random.PCG64, name: str, shape: tuple[int, ...]) -> Weights:
    """Ones for norms; for matrices uniform noise that keeps activations at about their size."""
    if len(shape) == 1:
        decays = name.endswith("ssm_a")  # the logarithm of what a step leaves of a state
        return np.full(shape, -1 if decays else 1, np.float32)
    count = int(np.prod(shape))
    steps = stream.random_raw(-(-count // 8)).astype("<u8").view(np.int8)[:count]
    return (steps.astype(np.float32) * np.float32(1 / (_STEPS_STD * shape[-1] ** 0.5))).reshape(shape)


def _metadata(spec: ModelSpec, writer: gguf.GGUFWriter) -> None:
    tokens, kinds = _vocabulary()
    writer.add_name(spec.name)
    writer.add_file_type(
        gguf.LlamaFileType.MOSTLY_F16 if spec.dtype == "F16" else gguf.LlamaFileType.MOSTLY_Q8_0
    )
    writer.add_vocab_size(len(tokens))
    writer.add_context_length(spec.context)
    writer.add_embedding_length(spec.embedding)
    writer.add_block_count(spec.layers)
    writer.add_feed_forward_length(spec.feed_forward)
    writer.add_head_count(spec.heads)
    if spec.key_length:
        writer.add_key_length(spec.key_length)
        writer.add_value_length(spec.key_length)
    writer.add_head_count_kv(spec.heads_kv if isinstance(spec.heads_kv, int) else list(spec.heads_kv))
    for name, value in spec.more.items():
        key = f"{spec.architecture}.{name}"
        if isinstance(value, bool):
            writer.add_bool(key, value)
        elif isinstance(value, int):
            writer.add_uint32(key, value)
        elif isinstance(value, float):
            writer.add_float32(key, value)
        else:
            writer.add_array(key, value)
    writer.add_tokenizer_model("llama")
    writer.add_tokenizer_pre("default")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * len(tokens))
    writer.add_token_types(kinds)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)
    writer.add_chat_template(CHAT_TEMPLATE)


def _vocabulary() -> tuple[list[str], list[int]]:
    """Tokens and their types: control tokens, one for each byte (any text can be said), printable ASCII."""
    kind = gguf.TokenType
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *_LETTERS]
    kinds = [kind.UNKNOWN, kind.CONTROL, kind.CONTROL, *[kind.BYTE] * 256, *[kind.NORMAL] * len(_LETTERS)]
    spare = -len(tokens) % 32  # rows of the quantized matrices are multiples of 32
    tokens += [f"<unused{number}>" for number in range(spare)]
    kinds += [kind.UNUSED] * spare
    return tokens, [int(one) for one in kinds]


def repos(specs: Sequence[ModelSpec] = SPECS) -> tuple[HubRepo, ...]:
    """The hub's repositories, one for each model; the commit follows from the files' content."""
    found = []
    for spec in specs:
        files = tuple(HubFile(path.name, path) for path in ensure(spec))
        named = "".join(f"{file.name} {file.sha256}\n" for file in files)
        commit = hashlib.sha1(named.encode(), usedforsecurity=False).hexdigest()
        found.append(HubRepo(spec.repo, commit, files, GATED_TOKEN if spec.gated else None))
    return tuple(found)


def manifest(specs: Sequence[ModelSpec] = SPECS) -> list[ModelFile]:
    """Every file of every model, made when absent."""
    return [
        ModelFile(spec.name, spec.repo, repo.commit, file.name, file.size, file.sha256)
        for spec, repo in zip(specs, repos(specs), strict=True)
        for file in repo.files
    ]
