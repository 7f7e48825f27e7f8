"""The stores on servers, under the module name from which programs import them."""

from palimpsest.compat.firefly.mongodb_store import MongoDBStore
from palimpsest.compat.firefly.postgres_store import PostgreSQLStore
from palimpsest.compat.firefly.redis_store import RedisStore

__all__ = ["MongoDBStore", "PostgreSQLStore", "RedisStore"]
