"""Templates to HTML, with everything escaped."""

from __future__ import annotations

from collections.abc import Callable

from jinja2 import Environment, PackageLoader, StrictUndefined

from holdfast.console import formats
from holdfast.console.caller import link
from holdfast.units import SECOND


class Renderer:
    """See the module. `asset_url` is where a file of `static/` is served."""

    def __init__(self, asset_url: Callable[[str], str]) -> None:
        self._environment = Environment(
            loader=PackageLoader("holdfast.console"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters |= {
            "number": formats.number,
            "rate": formats.rate,
            "size": formats.size,
            "duration": formats.duration,
            "age": lambda microseconds: formats.duration(microseconds / SECOND),
            "when": formats.when,
            "spark": formats.spark,
            "plural": formats.plural,
        }
        self._environment.globals |= {"asset": asset_url, "link": link}

    def render(self, template: str, **values: object) -> str:
        return self._environment.get_template(template).render(**values)
