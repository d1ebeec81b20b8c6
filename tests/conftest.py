"""What every test may ask for."""

from __future__ import annotations

from tests.services.redis import own_redis_server, redis_server

__all__ = ["own_redis_server", "redis_server"]
