"""Make the pictures of README and lessons from the explorer in a headless Chromium.

Run ``python -m tests.notebooks.pictures`` or ``make pictures``.

Each scene is a session, a view and the clicks of a person. ``notebooks/pictures/shown.json`` holds the text that each
scene showed when its pictures were made; a test opens the scenes again and compares.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import pathlib
import re
import shutil
import struct
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from html import escape
from typing import Any, NamedTuple

import numpy as np

from engine.records.session import Session
from engine.supported_versions import NEWEST_PYTHON, OLDEST_PYTHON, OLDEST_TORCH
from notebook_ext.widgets.standalone_page import write_page
from tests.matching_triton import TRITON_OF_TORCH
from tests.notebooks.lesson_drawings import write_drawings
from tests.notebooks.notebook_runner import NOTEBOOKS_DIR

FOLDER = NOTEBOOKS_DIR / "pictures"
SHOWN = FOLDER / "shown.json"
THEMES = ("light", "dark")
WIDTH = 1120
COLORS = 128
"""Colors of a picture: enough for its text, with a third of the bytes."""
TIME = re.compile(r"\d+(?:\.\d+)? (?:µs|ms|s)\b")
SCALE = 1.5
"""Pixels of a picture per pixel of the page, so that text stays sharp on fine screens."""
DECODE = """async (png) => {
  const image = await createImageBitmap(new Blob([Uint8Array.from(atob(png), (c) => c.charCodeAt(0))]));
  const canvas = new OffscreenCanvas(image.width, image.height).getContext("2d");
  canvas.drawImage(image, 0, 0);
  const data = canvas.getImageData(0, 0, image.width, image.height).data;
  let text = "";
  for (let i = 0; i < data.length; i += 32768) text += String.fromCharCode(...data.subarray(i, i + 32768));
  return [btoa(text), image.width];
}"""
FLAGS = ("--no-sandbox", "--disable-gpu", "--force-color-profile=srgb", "--disable-lcd-text")

BREAK = """
import torch
import torch.nn.functional as F

def loss_of(logits, targets):
    loss = F.cross_entropy(logits, targets)
    print("loss", round(loss.item(), 3))
    return loss * 0.5

loss_of(torch.zeros(8, 4), torch.zeros(8, dtype=torch.long));
"""
GUARD = """
import torch

def normalize(x, scale):
    x = x - x.mean(dim=-1, keepdim=True)
    return x * scale

normalize(torch.ones(8, 16), 0.5)
normalize(torch.ones(12, 16), 0.5);
"""


class Step(NamedTuple):
    """A click in a pane of the linked view, on the first row that holds the text."""

    pane: str
    text: str


class Scene(NamedTuple):
    """One view of one session; more than one step makes a moving picture.

    ``cell`` is the code to compile, or the name of a session in ``notebooks/sessions``.
    """

    cell: str
    view: str
    height: int
    steps: tuple[Step, ...] = ()
    opens: str = ""
    says: str = ""


SCENES = {
    "click": Scene(
        "gated_norm.json",
        "linked",
        700,
        (Step("source", "rsqrt"), Step("source", "return"), Step("ptx", "neg.f32"), Step("triton", "tl.load(x_ptr")),
        says="A line of Python is clicked, and its graph nodes, kernel lines and GPU instructions light up; then an instruction and a kernel line.",
    ),
    "break": Scene(BREAK, "breaks", 420, opens="Example: before and after", says="The Breaks view: the line that broke the graph, why, and what to write instead."),
    "guard": Scene(GUARD, "recompiles", 560, says="The Recompiles view: the guard that failed, the expected and the actual size, and a fix."),
    "kernel": Scene("gated_norm.json", "kernels", 470, says="The Kernels view: registers, occupancy, the place on the roofline, and why operations were fused."),
}  # fmt: skip


def record_cell(code: str) -> Session:
    """Return the session of a cell that is run under ``%%compile``."""
    from IPython.core.interactiveshell import InteractiveShell

    import engine

    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext notebook_ext", store_history=False)
    engine.reset()
    lines = code.strip().splitlines()
    ran = shell.run_cell("%%compile -o pictured\n" + "\n".join(lines), store_history=False)
    if not ran.success:
        raise RuntimeError("the cell of a picture failed")
    session: Session = shell.user_ns["pictured"]
    engine.wait(session)
    return session


def session_of(scene: Scene) -> Session:
    """Return the session that a scene shows."""
    if scene.cell.endswith(".json"):
        return Session.load(NOTEBOOKS_DIR / "sessions" / scene.cell)
    return record_cell(scene.cell)


class Shown(NamedTuple):
    """Picture, visible text and place of the click of one step of a scene."""

    picture: bytes
    text: str
    at: tuple[float, float]
    marks: tuple[tuple[float, float], ...] = ()
    """Top left corners of the elements that an annotated picture names."""


def show(
    scene: Scene, session: Session, browser: Any, theme: str, *, width: int = WIDTH, marked: Sequence[str] = ()
) -> Iterator[Shown]:
    """Open a scene in a browser and yield what each of its steps shows.

    ``marked`` are selectors of elements whose places are wanted.
    """
    page_bytes = io.BytesIO()
    write_page(session, page_bytes, "Compilation explorer", view=scene.view)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder) / "explorer.html"
        path.write_bytes(page_bytes.getvalue())
        context = browser.new_context(
            viewport={"width": width, "height": scene.height + 60},
            reduced_motion="reduce",
            device_scale_factor=SCALE,
        )
        page = context.new_page()
        page.goto(f"{path.as_uri()}#{theme}")
        page.wait_for_selector(".lm .say")
        page.wait_for_function("!document.querySelector('.lm').innerText.includes('Loading')")
        page.wait_for_timeout(600)
        if scene.opens:
            page.get_by_text(scene.opens).first.click()
        root = page.locator(".lm").first
        corner = root.bounding_box()
        for step in scene.steps or (None,):
            at = (0.0, 0.0)
            if step is not None:
                row = page.locator(f'.lm [data-pane="{step.pane}"] .r', has_text=step.text).first
                row.wait_for(timeout=5000)
                row.scroll_into_view_if_needed()
                row.click(position={"x": 150, "y": 8})
                page.wait_for_timeout(400)
                box = row.bounding_box()
                at = (box["x"] + 150 - corner["x"], box["y"] + 8 - corner["y"])
            page.mouse.move(2, 2)
            size = root.bounding_box()
            clip = {
                "x": corner["x"] - 6,
                "y": corner["y"] - 6,
                "width": size["width"] + 12,
                "height": min(size["height"] + 12, scene.height),
            }
            corners = [page.locator(selector).first.bounding_box() for selector in marked]
            marks = tuple((c["x"] - clip["x"], c["y"] - clip["y"]) for c in corners)
            yield Shown(
                page.screenshot(clip=clip), _stable_text(page, bool(scene.steps)), (at[0] + 6, at[1] + 6), marks
            )
        context.close()


def _stable_text(page: Any, is_linked: bool) -> str:
    """Return the text of a view without times.

    Of the linked view it is the sentence below it, as its panes draw only the rows in sight.
    """
    text = TIME.sub("TIME", page.locator(".lm .say" if is_linked else ".lm").first.inner_text())
    # The page of a recorded session says so where another torch is installed.
    return "\n".join(line for line in text.splitlines() if line and "was recorded with torch" not in line)


def with_fewer_colors(png: bytes, browser: Any) -> bytes:
    """Return a screenshot as an 8-bit palette PNG.

    The palette has its most frequent colors; each other color becomes the nearest of them.
    """
    pixels = _pixels(png, browser)
    height, width, _ = pixels.shape
    keys = (pixels.astype(np.uint32) << np.array([16, 8, 0], dtype=np.uint32)).sum(-1)
    found, places, counts = np.unique(keys, return_inverse=True, return_counts=True)
    rgb = np.stack([found >> 16, (found >> 8) & 255, found & 255], -1).astype(np.int32)
    palette = rgb[np.argsort(-counts, kind="stable")[:COLORS]]
    nearest = np.concatenate(
        [((part[:, None] - palette[None]) ** 2).sum(-1).argmin(-1) for part in np.array_split(rgb, len(rgb) // 512 + 1)]
    )
    rows = nearest.astype(np.uint8)[places.reshape(-1)].reshape(height, width)
    raw = b"".join(b"\0" + row.tobytes() for row in rows)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            (b"PLTE", palette.astype(np.uint8).tobytes()),
            (b"IDAT", zlib.compress(raw, 9)),
            (b"IEND", b""),
        )
    )


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def _pixels(png: bytes, browser: Any) -> Any:
    """Return the pixels of a picture as (height, width, 3), decoded by the browser."""
    page = browser.new_page()
    coded, width = page.evaluate(DECODE, base64.b64encode(png).decode())
    page.close()
    return np.frombuffer(base64.b64decode(coded), np.uint8).reshape(-1, width, 4)[..., :3]


SECONDS_PER_STEP = 2.6


def moving_picture(frames: list[Shown], title: str, browser: Any) -> str:
    """Return an SVG of frames shown in turn, with a pointer that goes to each click."""
    width, height = (side / SCALE for side in struct.unpack(">II", frames[0].picture[16:24]))
    total, share = SECONDS_PER_STEP * len(frames), 100 / len(frames)
    rules, images, moves = [], [], []
    for index, frame in enumerate(frames):
        begin, end = index * share, (index + 1) * share
        x, y = frame.at
        moves += [f"{begin:.2f}%,{end - share * 0.35:.2f}%{{transform:translate({x:.0f}px,{y:.0f}px)}}"]
        rules.append(
            f"@keyframes f{index}{{0%,{begin:.2f}%{{opacity:{int(not index)}}}{begin + 0.01:.2f}%,100%{{opacity:1}}}}"
        )
        rules.append(f".f{index}{{animation:f{index} {total}s step-end infinite}}")
        data = base64.b64encode(with_fewer_colors(frame.picture, browser)).decode()
        images.append(
            f'<image class="f{index}" width="{width:g}" height="{height:g}" href="data:image/png;base64,{data}"/>'
        )
    x, y = frames[0].at
    moves.append(f"100%{{transform:translate({x:.0f}px,{y:.0f}px)}}")
    rules.append(f"@keyframes go{{{''.join(moves)}}}.go{{animation:go {total}s ease-in-out infinite}}")
    still = "@media (prefers-reduced-motion:reduce){*{animation:none!important}.go{display:none}}"
    pointer = '<path class="go" d="M0 0v16l4-4 3 6.5 2.6-1.2-3-6.3h5.6z" fill="#111" stroke="#fff" stroke-width="1.4"/>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img">'
        f"<title>{escape(title)}</title><style>{''.join(rules)}{still}</style>{''.join(images)}{pointer}</svg>\n"
    )


EXPLORER_PARTS = {
    "A": (".lm .sum", 905, 0),
    "B": (".lm .tabs", 545, 6),
    "C": (".lm .ctx select:nth-of-type(2)", 100, -1),
    "D": ('.lm .rail [data-pane="sass"]', 62, 2),
    "E": ('.lm .pane[data-pane="source"]', 250, 170),
    "F": ('.lm .pane[data-pane="triton"]', 250, 330),
}
"""Parts of the explorer by letter: a selector, and pixels right of and below its corner."""
EXPLORER_SAYS = "The explorer with letters on its parts: A summary, B views, C what is shown, D the stages, E the line that was clicked, F what came from it."
ANNOTATED = NOTEBOOKS_DIR / "drawings" / "00-explorer.svg"


def annotated_picture(browser: Any) -> str:
    """Return an SVG of the explorer with a letter on each part, light and dark."""
    scene = SCENES["click"]._replace(steps=(Step("source", "rsqrt"),), height=620)
    selectors = [selector for selector, _, _ in EXPLORER_PARTS.values()]
    images, letters = [], []
    width = height = 0.0
    for theme in THEMES:
        shown = next(show(scene, session_of(scene), browser, theme, width=1000, marked=selectors))
        width, height = (side / SCALE for side in struct.unpack(">II", shown.picture[16:24]))
        data = base64.b64encode(with_fewer_colors(shown.picture, browser)).decode()
        images.append(
            f'<image class="{theme}" width="{width:g}" height="{height:g}" href="data:image/png;base64,{data}"/>'
        )
        letters = [
            f'<circle cx="{x + right + 12:.0f}" cy="{y + down + 12:.0f}" r="12" fill="#9a1f6a" stroke="#fff" stroke-width="2"/>'
            f'<text x="{x + right + 12:.0f}" y="{y + down + 17:.0f}" text-anchor="middle" fill="#fff">{letter}</text>'
            for (letter, (_, right, down)), (x, y) in zip(EXPLORER_PARTS.items(), shown.marks, strict=True)
        ]
    style = "text{font:bold 14px sans-serif}.dark{display:none}@media (prefers-color-scheme:dark){.light{display:none}.dark{display:inline}}"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}" role="img">'
        f"<title>{escape(EXPLORER_SAYS)}</title><style>{style}</style>{''.join(images)}{''.join(letters)}</svg>\n"
    )


def badges() -> dict[str, str]:
    """Return label and value of each badge, from what the project declares and tests."""
    oldest, newest = (".".join(map(str, v)) for v in (OLDEST_PYTHON, NEWEST_PYTHON))
    return {
        "python": f"{oldest} to {newest}",
        "torch": f"{'.'.join(map(str, OLDEST_TORCH))} to {list(TRITON_OF_TORCH)[-1]}",
        "gpu": "not needed",
        "license": "BSD-3-Clause",
    }


def badge(label: str, value: str) -> str:
    """Return a badge as SVG."""
    left, right = 14 + 6.6 * len(label), 14 + 6.6 * len(value)
    text = '<text x="{x}" y="14" textLength="{n}" lengthAdjust="spacingAndGlyphs" fill="#fff">{t}</text>'
    inside = text.format(x=7, n=f"{left - 14:.0f}", t=label) + text.format(
        x=f"{left + 7:.0f}", n=f"{right - 14:.0f}", t=value
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + right:.0f}" height="20" role="img"><title>{label}: {value}</title>'
        f'<rect width="{left:.0f}" height="20" fill="#444"/><rect x="{left:.0f}" width="{right:.0f}" height="20" fill="#0b5cad"/>'
        f'<g font-family="Verdana,DejaVu Sans,sans-serif" font-size="11">{inside}</g></svg>\n'
    )


def digest(path: pathlib.Path) -> str:
    """Return the SHA-256 of a file, as hexadecimal digits."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def write_pictures(browser: Any, say: Callable[[str], None] = print) -> None:
    """Write every picture and badge, and ``shown.json``."""
    FOLDER.mkdir(exist_ok=True)
    record: dict[str, Any] = {"text": {}, "files": {}}
    for name, scene in SCENES.items():
        session = session_of(scene)
        for theme in THEMES:
            frames = list(show(scene, session, browser, theme))
            record["text"][name] = [frame.text.splitlines() for frame in frames]
            if len(frames) > 1:
                (FOLDER / f"{name}-{theme}.svg").write_text(
                    moving_picture(frames, scene.says, browser), encoding="utf-8"
                )
            else:
                (FOLDER / f"{name}-{theme}.png").write_bytes(with_fewer_colors(frames[0].picture, browser))
        say(f"{name}: {len(record['text'][name])} frames")
    write_drawings()
    ANNOTATED.write_text(annotated_picture(browser), encoding="utf-8")
    for label, value in badges().items():
        (FOLDER / f"badge-{label}.svg").write_text(badge(label, value), encoding="utf-8")
    for path in sorted(FOLDER.iterdir()):
        if path.suffix in (".svg", ".png"):
            record["files"][path.name] = digest(path)
    SHOWN.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def main() -> None:
    """Make all pictures in a headless Chromium."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        browser = playwright.chromium.launch(executable_path=chromium, headless=True, args=list(FLAGS))
        write_pictures(browser)
        browser.close()


if __name__ == "__main__":
    main()
