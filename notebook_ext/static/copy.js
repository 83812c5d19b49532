// Text to the clipboard, also where a page may not write to it by itself.

/**
 * Copy a text; false where the browser refuses.
 * @param {string} text
 * @param {HTMLElement} near what has the keyboard, and gets it back
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
 * What a person sees of an element, as text; `hidden` parts are left out.
 * @param {HTMLElement} el
 */
export function shownText(el) {
  return el.innerText.replace(/\n{3,}/g, "\n\n").trim();
}
