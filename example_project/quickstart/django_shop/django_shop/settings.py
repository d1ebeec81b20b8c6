"""The data is in SQLite; broker, results and locks are in one Redis."""

import os
from pathlib import Path

SECRET_KEY = "only for this example"
DEBUG = True
ROOT_URLCONF = "django_shop.urls"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
    "celery_dlock.fencing",  # migrate creates the tables of the fence
    "orders",
]
MIDDLEWARE = [  # without CsrfViewMiddleware, so that curl is enough to try it
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": Path(__file__).resolve().parent.parent / "shop.db",
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
STATIC_URL = "static/"
TIME_ZONE = "UTC"
USE_TZ = True

CELERY_WORKER_PREFETCH_MULTIPLIER = 1  # no task waits in a worker that is busy with others
CELERY_RESULT_BACKEND_ALWAYS_RETRY = True

if "WITHOUT_REDIS" in os.environ:  # files, for a first look on one machine
    CELERY_BROKER_URL = "sqla+sqlite:///broker.db"
    CELERY_RESULT_BACKEND = "db+sqlite:///results.db"
    CELERY_DLOCK_URL = f"sqlite:///{Path('locks.db').absolute()}"
else:
    REDIS = os.environ.get("REDIS_URL", "redis://localhost:6379")
    CELERY_BROKER_URL = f"{REDIS}/0"
    CELERY_RESULT_BACKEND = f"{REDIS}/1"
    CELERY_DLOCK_URL = f"{REDIS}/2"
    CELERY_BROKER_TRANSPORT_OPTIONS = {"visibility_timeout": 3600}
