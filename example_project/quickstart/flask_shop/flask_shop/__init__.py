"""The application factory, with Celery as Flask's documentation sets it up."""

from collections.abc import Mapping
from typing import Any

from celery import Celery, Task
from flask import Flask

from flask_shop import models, views


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    app = Flask(__name__)
    app.config.from_object("flask_shop.settings")
    app.config.from_mapping(config)
    models.init_app(app)
    celery_init_app(app)
    app.register_blueprint(views.orders)
    return app


def celery_init_app(app: Flask) -> Celery:
    class FlaskTask(Task):
        def __call__(self, *args: Any, **kwargs: Any) -> Any:
            with app.app_context():
                return self.run(*args, **kwargs)

    celery_app = Celery(app.name, task_cls=FlaskTask)
    celery_app.config_from_object(app.config["CELERY"])
    celery_app.set_default()
    app.extensions["celery"] = celery_app
    return celery_app
