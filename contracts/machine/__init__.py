"""What a room needs of the machine it runs on: a Java that Spark boots on, a Redis-compatible server."""

from contracts.machine.java import Java
from contracts.machine.redis_server import RedisServer

__all__ = ["Java", "RedisServer"]
