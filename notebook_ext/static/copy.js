// Takes text out of the page: to the clipboard, also if the page may not use its API, or to a file.

/**
 * Copy a text; return false if the browser does not allow it.
 * @param {string} text
 * @param {HTMLElement} near the element that has the focus, and gets it back
 * @returns {Promise<boolean>}
 */
export async function copyText(text, near) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = document.createElement("textarea");
    field.value = text;
    field.style.cssText = "position:fixed;opacity:0";
    near.append(field);
    field.select();
    const isDone = document.execCommand("copy");
    field.remove();
    near.focus({ preventScroll: true });
    return isDone;
  }
}

/**
 * Visible text of an element; `hidden` parts are left out.
 * @param {HTMLElement} el
 */
export function shownText(el) {
  return el.innerText.replace(/\n{3,}/g, "\n\n").trim();
}

/** Download a file. @param {string} name @param {string} text @param {string} type */
export function save(name, text, type) {
  const url = URL.createObjectURL(new Blob([text], { type })), link = document.createElement("a");
  Object.assign(link, { href: url, download: name });
  document.body.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), 10_000);
}
