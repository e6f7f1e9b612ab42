"""The page: one file of HTML that needs nothing else, neither a network nor a script."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from agent.console import pairs, percent, us

from .figures import chip_roofline, forest, learning

TEMPLATES = Path(__file__).with_name("templates")


def html(gathered: Mapping[str, Any]) -> str:
    """The page of what :func:`.gathering.gather` found.  Whatever a base holds is text there, never markup."""
    templates = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    templates.filters |= {"pairs": pairs, "percent": percent}
    templates.globals |= {"us": us}
    pictures = {
        "rooflines": {chip["name"]: Markup(chip_roofline(chip)) for chip in gathered["chips"]},
        "learning": Markup(learning(gathered["places"])),
        "forest": Markup(forest(gathered["rules"])),
    }  # fmt: skip
    return templates.get_template("overview.html").render(**gathered, **pictures)
