"""HTML of a standalone page: the same front end, and a model without a kernel or network."""

from __future__ import annotations

import base64
import functools
import hashlib
import json
from html import escape
from typing import Any

from notebook_ext.views.format_text import one_line
from notebook_ext.widgets.bundle_assets import full_module_text, style_text

_HEAD_HTML = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; script-src {policy}; style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>
body{{margin:0;background:#fff;color:rgba(0,0,0,.87);font:13px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"Liberation Sans",sans-serif}}
body[data-jp-theme-light=false]{{background:#111;color:rgba(255,255,255,.9)}}
.page{{max-width:1680px;margin:0 auto;padding:8px 12px 24px}}.page>header{{display:flex;align-items:center;gap:12px;margin-bottom:8px}}.page>header b{{margin-right:auto}}
.page>header button{{font:inherit;color:inherit;background:none;border:1px solid #868686;border-radius:2px;padding:2px 8px;cursor:pointer}}
.private{{max-width:1680px;margin:0 auto;padding:0 12px 16px;font-size:12px;opacity:.8}}
{style}</style></head>
<body data-jp-theme-light="true">
<main class="page"><header><b>{title}</b><button type="button" id="theme">Dark theme</button></header><div id="explorer"></div></main>
"""

_PARTS_MODEL_JS = """
const data = JSON.parse(document.getElementById("data").textContent);
const places = JSON.parse(document.getElementById("index").textContent);
async function unpack(place) {
  const bytes = Uint8Array.from(atob(document.getElementById("p" + place).textContent), (c) => c.charCodeAt(0));
  return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"))).json();
}
const model = pageModel(data);
model.send = (message) => {
  if (message.type !== "part") model.tell("msg:custom", { type: "say", text: "This page has no kernel: run the notebook for that." });
  else if (message.key in places) unpack(places[message.key]).then((found) => model.tell("msg:custom", { type: "part", key: message.key, data: found }));
};
"""

_KERNELLESS_MODEL_JS = """
// The selection is in the URL fragment, if the page has its own URL.
function inAddress() { return new URLSearchParams(location.hash.slice(1)); }
function address(view) {
  const told = inAddress();
  told.set("view", view);
  return location.href.split("#")[0] + "#" + told.toString().replace(/=(?=&|$)/g, "");
}
function pageModel(data) {
  const listeners = [];
  const view = inAddress().get("view");
  if (view) data.view = view;
  return {
    get: (name) => data[name],
    on(event, callback) { listeners.push([event, callback]); },
    off(event, callback) { const at = listeners.findIndex((l) => l[0] === event && l[1] === callback); if (at >= 0) listeners.splice(at, 1); },
    tell(event, message) { for (const [name, callback] of [...listeners]) if (name === event) callback(message); },
    set(name, value) { data[name] = value; },
    save_changes() { if (this.link) history.replaceState(null, "", address(data.view)); },
    hasKernel: false,
    link: location.protocol === "about:" ? undefined : address,
  };
}
"""

_START_JS = """
addEventListener("hashchange", () => { const view = inAddress().get("view"); if (view && view !== model.get("view")) { model.set("view", view); model.tell("change:view"); } });
const button = document.getElementById("theme");
function setTheme(isDark) { document.body.dataset.jpThemeLight = String(!isDark); button.textContent = isDark ? "Light theme" : "Dark theme"; }
button.addEventListener("click", () => setTheme(document.body.dataset.jpThemeLight === "true"));
setTheme(inAddress().has("dark") || (!inAddress().has("light") && matchMedia("(prefers-color-scheme: dark)").matches));
explorer.render({ model, el: document.getElementById("explorer") });
"""


def head_html(title: str) -> str:
    """Return the start of a page, up to its data."""
    return _HEAD_HTML.format(title=escape(one_line(title)), style=style_text(), policy=script_policy())


def module_html() -> str:
    """Return the end of a page: its only script that runs, with the front end and the model."""
    return f'<script type="module">{_script()}</script></body></html>\n'


def script_policy() -> str:
    """Return the policy source that allows the script of a page, and no other."""
    return policy_source(_script())


def policy_source(script: str) -> str:
    """Return the source of a content security policy that allows one inline script."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'"


@functools.cache
def _script() -> str:
    shim = "{" + _PARTS_MODEL_JS + _START_JS + _KERNELLESS_MODEL_JS + "}"
    return f"\n{_as_constant(full_module_text())}\n{shim}\n"


def script_safe_json(data: Any) -> str:
    """Return JSON that cannot open or close a script element, whatever its strings hold."""
    return json.dumps(data, ensure_ascii=True, separators=(",", ":")).replace("<", "\\u003c")


def _as_constant(module: str) -> str:
    return module.replace("export default", "const explorer =")
