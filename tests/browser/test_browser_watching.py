"""Checks that visitors notice errors; without, other tests always pass."""

from __future__ import annotations

from sqla_shard.testing.local_server import wait_until
from tests.browser.serving import Site
from tests.browser.watching import Visitor


def test_errors_of_a_page_are_detected(chromium, site: Site) -> None:
    one = Visitor(chromium, site)
    page = one.page
    page.goto("/")
    one.at("users")
    assert one.noticed == []
    page.evaluate("console.error('of the test')")
    page.evaluate("setTimeout(() => { throw new Error('thrown') })")
    page.evaluate(
        """() => new Promise((resolve) => {
            document.addEventListener("securitypolicyviolation", resolve);
            const image = new Image();
            image.src = "http://127.0.0.1:1/violation.png";
        }).then(() => null)"""
    )
    page.goto("/static/there-is-no-such.css")
    page.goto("about:blank")
    page.evaluate("fetch('http://127.0.0.1:1/left').catch(() => null)")
    parts = (
        "console error: of the test",
        "thrown",
        "CSP: img-src http://127.0.0.1:1/violation.png",
        "status of 404",
        "a request left the site: http://127.0.0.1:1/left",
    )

    def missing() -> list[str]:
        # The browser tells of it when it comes to that, and is heard by who
        # asks it for something.
        page.evaluate("null")
        text = "\n".join(one.noticed)
        return [part for part in parts if part not in text]

    wait_until(lambda: not missing(), seconds=60)
    assert missing() == []
    one.close()
