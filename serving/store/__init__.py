"""The serving state: key -> packed bytes in declared families, over Redis or in memory, same code above either."""

from serving.store.families import KEY_FAMILIES, key
from serving.store.memory import MemoryStore
from serving.store.protocol import Append, Bump, Mutation, Put, Store, StoreDown

__all__ = ["KEY_FAMILIES", "Append", "Bump", "MemoryStore", "Mutation", "Put", "Store", "StoreDown", "key"]
