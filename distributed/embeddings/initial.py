"""Starting rows of a table, the same however it is cut, without any rank drawing the whole."""

import torch

_BLOCK = 4096


def initial_rows(rows: range, dim: int, seed: int, std: float = 0.01) -> torch.Tensor:
    """Rows of a normal table, (len(rows), dim): each block of 4096 rows is drawn from its own generator."""
    whole = torch.empty(len(rows), dim)
    for block in range(rows.start // _BLOCK, -(-rows.stop // _BLOCK) if len(rows) else 0):
        generator = torch.Generator().manual_seed(seed * 1_000_003 + block)
        drawn = torch.randn(_BLOCK, dim, generator=generator, dtype=torch.float64) * std
        first, last = max(rows.start, block * _BLOCK), min(rows.stop, (block + 1) * _BLOCK)
        whole[first - rows.start : last - rows.start] = drawn[first - block * _BLOCK : last - block * _BLOCK]
    return whole


def check_ids(ids_N: torch.Tensor, rows: int, what: str) -> None:
    """`ValueError` with the id and the number of rows when an id is outside the table."""
    if len(ids_N) and (int(ids_N.min()) < 0 or int(ids_N.max()) >= rows):
        wrong = int(ids_N.min()) if int(ids_N.min()) < 0 else int(ids_N.max())
        raise ValueError(f"id {wrong} is outside {what} of {rows} rows")
