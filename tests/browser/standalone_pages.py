"""Make pages as ``--save`` writes them, with all parts unpacked before the first look.

A test then needs no waiting.
"""

from __future__ import annotations

import io
from typing import Any

from engine.records.session import Session
from notebook_ext.widgets.page_template import policy_source
from notebook_ext.widgets.standalone_page import write_page

START = 'explorer.render({ model, el: document.getElementById("explorer") });'
UNPACKED = """const unpacked = {};
for (const key in places) unpacked[key] = await unpack(places[key]);
const packedSend = model.send;
model.send = (message) => message.type === "part" && message.key in unpacked ? model.tell("msg:custom", { type: "part", key: message.key, data: unpacked[message.key] }) : packedSend(message);
"""


def page_text(session: Session, **beside: Any) -> str:
    """Return the page that shows a session; ``beside`` is passed to ``write_page``.

    The page's data is in ``const data``, and its script starts with ``START``.
    """
    page = io.BytesIO()
    write_page(session, page, "Compilation explorer", **{"view": "linked", **beside})
    text = page.getvalue().decode()
    assert text.count(START) == 1
    return with_edited_script(text, START, UNPACKED + START)


def with_edited_script(page: str, old: str, new: str) -> str:
    """Return a page with a change of its script, which its policy then allows."""
    edited = page.replace(old, new)
    return edited.replace(policy_source(_script_of(page)), policy_source(_script_of(edited)))


def _script_of(page: str) -> str:
    return page.rpartition('<script type="module">')[2].partition("</script>")[0]
