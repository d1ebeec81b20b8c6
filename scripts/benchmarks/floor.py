"""The least that tasks in line for one key can cost with Celery: nothing of ours, and no promises.

A hand-over takes a result, a script that releases and names the next, a publish, the broker, the
worker's main process, the pool, and a script that takes. Those are here, each as cheap as it goes:
a connection of its own, no lease to renew, no order in a crash, and the message as it was made.
"""

# mypy: allow-untyped-calls

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from celery import Task
from celery.utils import uuid
from celery.worker.strategy import default
from redis import Connection
from redis.connection import parse_url

#: The first of its key may go on, and the others wait in a list.
_JOIN = """if redis.call('INCR', KEYS[1] .. ':alive') == 1 then return 1 end
redis.call('RPUSH', KEYS[1] .. ':waiting', ARGV[1])
return 0"""
_TAKE = "return redis.call('SET', KEYS[1], ARGV[1], 'NX', 'PX', 30000) and 1 or 0"
_RELEASE = """if redis.call('GET', KEYS[1]) ~= ARGV[1] then return end
redis.call('DEL', KEYS[1])
if redis.call('DECR', KEYS[1] .. ':alive') > 0 then
  return redis.call('LPOP', KEYS[1] .. ':waiting')
end"""

#: A header of the messages that have waited, which Redis is asked for before all others.
_WOKEN = "floor_woken"
_LAST = {"priority": 9}


class InLine(Task):  # type: ignore[misc]
    """Its first argument is the key, and its messages wait as they are published."""

    abstract = True

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        made = self.app.amqp.as_task_v2(uuid(), self.name, args, kwargs)
        message = json.dumps([json.dumps(made.body), made.headers, made.properties])
        if self.ask(_JOIN, args[0], message):
            self._publish(message, **_LAST)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not self.ask(_TAKE, args[0], self.request.id):
            raise AssertionError("two of one key run at once")
        return self.run(*args, **kwargs)

    def after_return(
        self, status: str, retval: Any, task_id: str, args: Any, kwargs: Any, einfo: Any
    ) -> None:
        """Called when the result is stored."""
        following = self.ask(_RELEASE, args[0], task_id)
        if following is not None:
            self._publish(following)

    def ask(self, script: str, key: str, argument: str) -> Any:
        """What *script* returns for *key*."""
        connection = _connection(self.app.conf.dlock_url)
        connection.send_command("EVALSHA", _loaded(connection, script), 1, f"floor:{key}", argument)
        return connection.read_response()

    def _publish(self, message: str | bytes, **options: Any) -> None:
        body, headers, properties = json.loads(message)
        with self.app.producer_or_acquire() as producer:
            producer.publish(
                body,
                exchange="",
                routing_key=self.app.conf.task_default_queue,
                content_type="application/json",
                content_encoding="utf-8",
                headers={**headers, _WOKEN: True},
                **properties,
                **options,
            )


def parks(task: Any, app: Any, consumer: Any) -> Callable[..., Any]:
    """Celery's strategy, behind a script that parks."""
    handler: Callable[..., Any] = default(task, app, consumer)

    def handle(message: Any, payload: Any, acknowledge: Any, *rest: Any) -> Any:
        if _WOKEN not in message.headers:
            (key, *_), *_ = message.payload
            body = message.body if isinstance(message.body, str) else message.body.decode()
            properties = {name: message.properties[name] for name in ("correlation_id", "reply_to")}
            if not task.ask(_JOIN, key, json.dumps([body, message.headers, properties])):
                acknowledge(None, ())
                return None
        return handler(message, payload, acknowledge, *rest)

    return handle


class ReceivedFirst(InLine):
    """Its messages come by the broker twice: the main process parks them."""

    abstract = True
    Strategy = f"{__name__}:parks"

    def apply_async(self, args: Any = None, kwargs: Any = None, **options: Any) -> None:
        Task.apply_async(self, args, kwargs, **_LAST)


@lru_cache
def _connection(url: str) -> Connection:
    """Of this process; the main one has forked its children before a message comes."""
    return Connection(**parse_url(url))


@lru_cache
def _loaded(connection: Connection, script: str) -> Any:
    connection.send_command("SCRIPT", "LOAD", script)
    return connection.read_response()
