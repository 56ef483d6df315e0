"""Whether people who see or hear badly, or use no mouse, can use a page: WCAG 2.1 AA, as far as axe can tell."""

from __future__ import annotations

from tests.console.rig import Window

RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]


async def check_accessible(view: Window, axe: str) -> None:
    """axe is run by the browser's own tools, since the pages let no other script in."""
    session = await view.context.new_cdp_session(view.page)
    await session.send("Runtime.evaluate", {"expression": axe})
    found = await view.page.evaluate(
        "async rules => (await axe.run({runOnly: rules})).violations.map("
        "found => [found.id, found.nodes.map(node => node.html + ' ' + node.failureSummary)])",
        RULES,
    )
    assert found == [], found
