"""What a worker loads: ``celery -A make_celery worker``."""

from flask_shop import create_app

flask_app = create_app()
celery_app = flask_app.extensions["celery"]
