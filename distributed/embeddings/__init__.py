"""Embedding tables too large for one rank: cut by rows, by columns or table by table, and looked up by all-to-all."""

from distributed.embeddings.admission import Admission
from distributed.embeddings.column_wise import ColumnWiseTable
from distributed.embeddings.optimizer import RowWiseAdagrad
from distributed.embeddings.pooling import pooled
from distributed.embeddings.row_wise import RowWiseTable
from distributed.embeddings.table_wise import TableShape, TableWiseTables, place_tables

__all__ = [
    "Admission", "ColumnWiseTable", "RowWiseAdagrad", "RowWiseTable", "TableShape", "TableWiseTables", "place_tables", "pooled",
]  # fmt: skip
