"""What every test may ask for."""

from __future__ import annotations

from tests.services.rabbitmq import own_rabbitmq_server, rabbitmq_server
from tests.services.redis import own_redis_server, redis_server

__all__ = ["own_rabbitmq_server", "own_redis_server", "rabbitmq_server", "redis_server"]
