"""Its settings, from the environment of a test."""

import os

SECRET_KEY = "for tests"
INSTALLED_APPS = ["holdfast.frameworks.django", "tests.frameworks.shop"]
DATABASES = {
    "default": {
        "ENGINE": os.environ["SHOP_ENGINE"],
        "NAME": os.environ["SHOP_DATABASE"],
        "HOST": os.environ.get("SHOP_HOST", ""),
        "USER": os.environ.get("SHOP_USER", ""),
        "CONN_MAX_AGE": 60,
    }
}
HOLDFAST = {"url": os.environ["SHOP_HOLDFAST"]}
USE_TZ = True
