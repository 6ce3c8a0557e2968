"""A layout of the planner as the flags that train with it: `feedloop train ranker`."""

from distributed.planner.layout import Layout
from distributed.planner.models import Model


def training_command(model: Model, layout: Layout, micro_batches: int) -> tuple[str, list[str]]:
    """(the command that trains one of the project's rankers so, what of the layout it cannot say).

    The planner's tp, cp and pp are the mesh's axes of the same name; dp is dp_shard where ZeRO or experts shard it and
    dp_replicate else, both with `replicas`.
    """
    parts = [f"feedloop train ranker --model {'sequence' if model.layers else 'mmoe'} --nproc {layout.world_size}",
             f"--layout {layout.mesh}", f"--zero {layout.zero}", f"--micro-batches {micro_batches}"]  # fmt: skip
    parts += [f"--ep {layout.ep}"] if layout.ep > 1 else []
    parts += ["--ep-over-tp"] if layout.ep_over_tp else []
    parts += [f"--schedule {layout.schedule}"] if layout.pp > 1 else []
    parts += [f"--virtual {layout.virtual}"] if layout.virtual > 1 else []
    parts += [f"--recompute {layout.recompute}"] if layout.recompute != "none" else []
    parts += [f"--ulysses {layout.ulysses}"] if layout.ulysses > 1 else []
    unsaid = []
    if layout.tp > 1 and not layout.sp:
        unsaid.append("sp=0: training under tp is always sequence parallel")
    if layout.cp > 1 and not layout.zigzag:
        unsaid.append("zigzag=0: context parallel training always cuts zig-zag")
    if layout.order != "tp-cp-dp-pp":
        unsaid.append(f"order={layout.order}: ranks are always numbered tp-cp-dp-pp")
    return " ".join(parts), unsaid
