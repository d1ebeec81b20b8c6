"""The database is that of the data, of the broker and of the locks."""

import os

from sqlalchemy import make_url

_url = make_url(os.environ["SHOP"])

SECRET_KEY = "only for tests"
USE_TZ = True
ALLOWED_HOSTS = ["testserver"]
INSTALLED_APPS = ["celery_dlock.django"]
ROOT_URLCONF = "tests.services.django_shop.app"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": _url.database,
        "USER": _url.username,
        "HOST": _url.host,
        "PORT": _url.port,
        "ATOMIC_REQUESTS": True,
    }
}

CELERY_BROKER_URL = f"sqla+{os.environ['SHOP'].replace('://', '+psycopg://')}"
CELERY_DLOCK_URL = "django://default"
