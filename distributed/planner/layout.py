"""Parallel layouts: their axes and recipe, what makes one legal, and the legal one nearest to a wish.

Axes multiply to the world: dp x cp x tp x pp. Experts lie inside dp x cp, so `ep` divides that product and is never a
factor of its own.
"""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields

from distributed.planner.errors import PlanError
from distributed.planner.models import Model

SCHEDULES = ("gpipe", "1f1b", "interleaved", "zb-h1", "zb-h2", "zb-v", "dualpipe", "dualpipe-v")
RECOMPUTE = ("none", "selective", "full")
_TWO_CHUNKS = ("zb-v", "dualpipe-v")


@dataclass(frozen=True)
class Layout:
    """Ranks per axis and how each rank works. `micro_batch` in samples; `virtual` chunks a rank (interleaved).

    `ep_over_tp`: experts lie inside dp x cp x tp. `replicas`: copies of the sharded states along dp (hybrid shard).
    `ulysses` ranks of cp swap tokens for heads, the rest is a ring, zig-zag or contiguous. `order` lists the axes from the
    innermost (neighbouring ranks) to the outermost.
    """

    tp: int = 1
    cp: int = 1
    pp: int = 1
    dp: int = 1
    ep: int = 1
    zero: int = 1
    micro_batch: int = 1
    recompute: str = "none"
    schedule: str = "1f1b"
    virtual: int = 1
    sp: bool = True
    order: str = "tp-cp-dp-pp"
    replicas: int = 1
    ulysses: int = 1
    zigzag: bool = True
    ep_over_tp: bool = False

    def __post_init__(self) -> None:
        for name in ("tp", "cp", "pp", "dp", "ep", "micro_batch", "virtual", "ulysses", "replicas"):
            if getattr(self, name) < 1:
                raise PlanError(f"layout {name} is {getattr(self, name)}; it must be at least 1")
        if self.zero not in (0, 1, 2, 3):
            raise PlanError(f"layout zero is {self.zero}, not 0, 1, 2 or 3")
        if self.recompute not in RECOMPUTE:
            raise PlanError(f"layout recompute is {self.recompute!r}, not one of {', '.join(RECOMPUTE)}")
        if self.schedule not in SCHEDULES:
            raise PlanError(f"layout schedule is {self.schedule!r}, not one of {', '.join(SCHEDULES)}")
        if sorted(self.order.split("-")) != ["cp", "dp", "pp", "tp"]:
            raise PlanError(f"layout order {self.order!r} does not name tp, cp, dp and pp once each")

    @property
    def world_size(self) -> int:
        """Ranks in all."""
        return self.tp * self.cp * self.pp * self.dp

    @property
    def mesh(self) -> str:
        """The axes as the platform's `--layout` takes them: ZeRO and experts shard the data axis, else it is replicated."""
        copies = self.replicas if self.zero or self.ep > 1 else self.dp
        axes = (
            ("pp", self.pp),
            ("dp_replicate", copies),
            ("dp_shard", self.dp // copies),
            ("cp", self.cp),
            ("tp", self.tp),
        )
        return ",".join(f"{name}={size}" for name, size in axes if size > 1) or "dp_replicate=1"

    @property
    def chunks(self) -> int:
        """Stages a rank holds of one path of the model."""
        return 2 if self.schedule in _TWO_CHUNKS else self.virtual

    @property
    def sequence_parallel(self) -> bool:
        """Whether norms and dropouts are split over the tensor ranks."""
        return self.sp and self.tp > 1

    @property
    def shards(self) -> int:
        """Ranks over which ZeRO spreads what it spreads, and inside which experts lie."""
        return self.dp * self.cp // self.replicas

    @property
    def expert_copies(self) -> int:
        """Ranks beside each other that hold the same experts."""
        return self.shards * (self.tp if self.ep_over_tp else 1) // self.ep

    def stride(self, axis: str) -> int:
        """Distance between neighbours along `axis`."""
        sizes = 1
        for name in self.order.split("-"):
            if name == axis:
                break
            sizes *= getattr(self, name)
        return sizes

    def __str__(self) -> str:
        axes = [f"{name}={getattr(self, name)}" for name in ("tp", "cp", "pp", "dp", "ep")]
        shown = [text for text in axes if not text.endswith("=1")] or ["dp=1"]
        recipe = [f"zero={self.zero}", f"micro={self.micro_batch}"]
        recipe += [f"recompute={self.recompute}"] if self.recompute != "none" else []
        recipe += [f"schedule={self.schedule}"] if self.pp > 1 else []
        recipe += [f"v={self.virtual}"] if self.virtual > 1 else []
        recipe += ["sp=0"] if self.tp > 1 and not self.sp else []
        recipe += ["ep_over_tp=1"] if self.ep_over_tp else []
        recipe += [f"replicas={self.replicas}"] if self.replicas > 1 else []
        recipe += [f"ulysses={self.ulysses}"] if self.ulysses > 1 else []
        recipe += ["zigzag=0"] if self.cp > 1 and not self.zigzag else []
        recipe += [f"order={self.order}"] if self.order != "tp-cp-dp-pp" else []
        return ",".join(shown + recipe)


_ALIASES = {"micro": "micro_batch", "v": "virtual"}


def parse_layout(text: str) -> Layout:
    """The layout of a text such as "tp=8,pp=16,dp=128,zero=1,recompute=full,schedule=interleaved,v=4"."""
    values: dict[str, object] = {}
    kinds = {field.name: field.type for field in fields(Layout)}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        name = _ALIASES.get(key, key)
        if name not in kinds or not equals:
            raise PlanError(f"layout part {part!r} is not NAME=VALUE with a name of {', '.join([*kinds, *_ALIASES])}")
        if name in values:
            raise PlanError(f"layout {text!r} names {name} twice")
        try:
            values[name] = value if kinds[name] is str else bool(int(value)) if kinds[name] is bool else int(value)
        except ValueError:
            raise PlanError(f"layout {key} is {value!r}, which is not a whole number") from None
    if not values:
        raise PlanError(f"layout {text!r} names nothing; NAME=VALUE with a name of {', '.join(kinds)} is needed")
    if "zero" not in values and values.get("dp", 1) == 1 and values.get("cp", 1) == 1:
        values["zero"] = 0
    return Layout(**values)  # type: ignore[arg-type]


def objections(model: Model, layout: Layout, gpus: int, global_batch: int) -> list[str]:
    """Every reason why the layout cannot be, each a sentence with its numbers; none when it is legal."""
    found = []
    if layout.world_size != gpus:
        product = f"tp {layout.tp} x cp {layout.cp} x pp {layout.pp} x dp {layout.dp} = {layout.world_size} ranks"
        sentence = f"{product}, but there are {gpus} accelerators"
        if layout.ep > 1 and layout.world_size * layout.ep == gpus:
            sentence += f"; ep {layout.ep} is no factor of the world, experts lie inside dp x cp"
        found.append(sentence)
    found += _model_objections(model, layout)
    if layout.dp % layout.replicas:
        found.append(f"{layout.replicas} replicas of the states do not divide dp {layout.dp}")
    elif layout.ep_over_tp and layout.tp > 1 and not layout.sequence_parallel:
        found.append("experts over tp need sequence parallel: without it all tensor ranks hold the same tokens")
    elif layout.expert_copies * layout.ep != layout.shards * (layout.tp if layout.ep_over_tp else 1):
        inside = f"dp x cp x tp = {layout.shards * layout.tp}" if layout.ep_over_tp else f"dp x cp = {layout.shards}"
        found.append(f"ep {layout.ep} does not divide {inside}, inside which the experts lie")
    if global_batch % (layout.dp * layout.micro_batch):
        found.append(
            f"a global batch of {global_batch} is no multiple of dp {layout.dp} x micro-batch {layout.micro_batch} "
            f"= {layout.dp * layout.micro_batch}"
        )
    else:
        found += _schedule_objections(layout, global_batch // (layout.dp * layout.micro_batch))
    if model.platform and layout.pp > 1:
        if layout.schedule == "dualpipe":
            found.append(
                "dualpipe holds every stage twice, which the platform does not run; dualpipe-v does the same with one"
            )
        if layout.recompute == "selective" and layout.schedule.startswith(("zb-", "dualpipe")):
            found.append(f"recompute=selective does not go with {layout.schedule}, whose backward comes in two parts")
    return found


def _model_objections(model: Model, layout: Layout) -> list[str]:
    found = []
    tp, cp = layout.tp, layout.cp
    if not model.layers:
        if tp * cp * layout.pp > 1:
            found.append(f"{model.name} has no layers to split: tp {tp}, cp {cp} and pp {layout.pp} must be 1")
        return found
    if model.heads % tp:
        found.append(f"{model.heads} heads are no multiple of tp {tp}")
    elif model.key_heads % tp and tp % model.key_heads:
        found.append(f"{model.key_heads} kv heads neither split over nor repeat evenly on tp {tp}")
    widths = [model.width] if not model.experts else [model.experts.ffn]
    found += [f"a feed-forward width of {width} is no multiple of tp {tp}" for width in widths if width % tp]
    if cp % layout.ulysses:
        found.append(f"ulysses {layout.ulysses} does not divide cp {cp}, of which it is a part")
    elif layout.ulysses > 1:
        heads, keys, inner = max(1, model.heads // tp), max(1, model.key_heads // tp), layout.ulysses
        if heads % inner or (keys % inner and inner % keys):
            found.append(f"{heads} heads and {keys} kv heads of a tensor rank do not divide over ulysses {inner}")
    if cp > 1 and model.sequence % (2 * cp):
        found.append(f"a sequence of {model.sequence} does not split into 2 x cp {cp} = {2 * cp} zig-zag chunks")
    if layout.sequence_parallel and model.sequence % (cp * tp):
        found.append(
            f"a sequence of {model.sequence} is no multiple of cp {cp} x tp {tp}, which sequence parallel needs"
        )
    if layout.ep > 1 and not model.experts:
        found.append(f"{model.name} has no experts: ep {layout.ep} must be 1")
    elif model.experts and model.experts.count % layout.ep:
        found.append(f"{model.experts.count} experts are no multiple of ep {layout.ep}")
    stages = layout.pp * layout.chunks
    if model.layers < stages:
        found.append(f"{model.layers} layers are fewer than pp {layout.pp} x {layout.chunks} chunks = {stages} stages")
    return found


def _schedule_objections(layout: Layout, micro_batches: int) -> list[str]:
    found = []
    pp, m, name = layout.pp, micro_batches, layout.schedule
    if layout.virtual > 1 and name != "interleaved":
        found.append(f"{layout.virtual} virtual chunks need schedule=interleaved, not {name}")
    if name == "interleaved" and layout.virtual < 2:
        found.append("schedule=interleaved needs v of at least 2")
    if name == "interleaved" and m % pp:
        found.append(f"interleaved needs micro-batches in multiples of pp {pp}; there are {m}")
    if name in ("zb-h1", "zb-h2") and pp > 1 and m < (pp if name == "zb-h1" else 2 * pp - 1):
        found.append(f"{name} needs at least {pp if name == 'zb-h1' else 2 * pp - 1} micro-batches; there are {m}")
    if name == "zb-v" and m < 2 * pp - 1:
        found.append(f"zb-v needs at least {2 * pp - 1} micro-batches on pp {pp}; there are {m}")
    if name == "dualpipe" and (pp % 2 or m % 2 or m < 2 * pp):
        found.append(
            f"dualpipe needs even pp and an even number of at least 2 pp micro-batches; pp {pp}, there are {m}"
        )
    if name == "dualpipe-v" and m < 2 * pp:
        found.append(f"dualpipe-v needs at least {2 * pp} micro-batches on pp {pp}; there are {m}")
    return found


def divisors(number: int, largest: int | None = None) -> list[int]:
    """Divisors in rising order, at most `largest`."""
    low = [d for d in range(1, math.isqrt(number) + 1) if number % d == 0]
    every = sorted({*low, *(number // d for d in low)})
    return [d for d in every if largest is None or d <= largest]


def meshes(model: Model, gpus: int, largest_tp: int) -> Iterator[Layout]:
    """Every legal (tp, cp, pp, dp, ep) for the model, whatever the batch; `largest_tp` bounds tp."""
    for tp in divisors(gpus, largest_tp if model.layers else 1):
        for cp in divisors(gpus // tp, max(1, model.sequence // (1024 * tp)) if model.layers else 1):
            for pp in divisors(gpus // (tp * cp), max(1, model.layers)):
                mesh = Layout(tp=tp, cp=cp, pp=pp, dp=gpus // (tp * cp * pp))
                if _model_objections(model, mesh):
                    continue
                experts = divisors(math.gcd(model.experts.count, mesh.shards)) if model.experts else [1]
                for ep in experts:
                    yield dataclasses.replace(mesh, ep=ep)


def nearest_legal(
    model: Model,
    wish: Layout,
    gpus: int,
    global_batch: int,
    largest_tp: int,
    fits: Callable[[Layout], bool] | None = None,
) -> Layout | None:
    """The legal layout at the fewest doublings from the wish, its recipe kept where that is possible.

    With `fits`, the nearest that also fits; the nearest legal one when none does.
    """
    names = ("tp", "cp", "pp", "dp", "ep")
    near = sorted(
        (sum(abs(math.log2(getattr(mesh, name) / getattr(wish, name))) for name in names), str(mesh), mesh)
        for mesh in meshes(model, gpus, max(largest_tp, wish.tp))
    )
    plain: dict[str, object] = {"schedule": "1f1b", "virtual": 1, "micro_batch": 1}
    full: dict[str, object] = {**plain, "recompute": "full"}
    steps: tuple[dict[str, object], ...] = (
        {},
        {"schedule": "1f1b", "virtual": 1},
        plain,
        {**plain, "zero": 2},
        {**full, "zero": 2},
        {**full, "zero": 3},
    )
    legal: Layout | None = None
    for _, _, mesh in near:
        for step in steps:
            candidate = dataclasses.replace(wish, **{**{name: getattr(mesh, name) for name in names}, **step})  # type: ignore[arg-type]
            if objections(model, candidate, gpus, global_batch):
                continue
            if fits is None or fits(candidate):
                return candidate
            legal = legal or candidate
    return legal
