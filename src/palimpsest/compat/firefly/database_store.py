"""The stores on servers, under the name of the module that programs import them from."""

from palimpsest.compat.firefly.mongodb_store import MongoDBStore
from palimpsest.compat.firefly.postgres_store import PostgreSQLStore
from palimpsest.compat.firefly.redis_store import RedisStore

__all__ = ["MongoDBStore", "PostgreSQLStore", "RedisStore"]
