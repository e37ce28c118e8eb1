/**
 * Builds elements. Texts become text nodes and never markup, because clients choose some of the
 * texts, such as shapes and names of applications.
 */

const SVG = "http://www.w3.org/2000/svg";

/** @typedef {Node | string | number | null | undefined | false} Child */
/** @typedef {Record<string, any>} Attributes */

/**
 * @param {Element} element
 * @param {Attributes} attributes
 */
export function setAttributes(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) {
      element.removeAttribute(name);
    } else if (name.startsWith("on")) {
      element.addEventListener(name.slice(2), value);
    } else if (name.startsWith("--")) {
      /** @type {HTMLElement} */ (element).style.setProperty(name, String(value));
    } else {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
}

/**
 * @template {Element} T
 * @param {T} element
 * @param {Child[]} children
 */
export function fill(element, ...children) {
  element.replaceChildren(...nodes(children));
  return element;
}

/** @param {Child[]} children */
function nodes(children) {
  const shown = children.filter(
    (child) => child !== null && child !== undefined && child !== false,
  );
  return shown.map((child) =>
    child instanceof Node ? child : document.createTextNode(String(child)),
  );
}

/**
 * @template {keyof HTMLElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {Child[]} children
 */
export function h(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  setAttributes(element, attributes);
  element.append(...nodes(children));
  return element;
}

/**
 * @template {keyof SVGElementTagNameMap} K
 * @param {K} tag
 * @param {Attributes} [attributes]
 * @param {Child[]} children
 */
export function svg(tag, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, tag);
  setAttributes(element, attributes);
  element.append(...nodes(children));
  return element;
}

/** The elements that can have the focus. */
const FOCUSABLE = "a, button, input, select, summary, [tabindex]";

/**
 * Redraws elements. If the focused element is replaced, its successor gets the focus: the element
 * of the same kind with the same address or name. Without this, users of a keyboard would begin at
 * the top of the page after each update.
 * @param {HTMLElement} root contains the elements
 * @param {() => void} redraw
 */
export function keepFocus(root, redraw) {
  const focused = document.activeElement;
  if (!focused || focused === document.body || !root.contains(focused)) {
    redraw();
    return;
  }
  const name = (/** @type {Element} */ of) => {
    const own = of.getAttribute("href") ?? of.getAttribute("aria-label");
    return `${of.tagName} ${own ?? (of.closest("label") ?? of).textContent}`;
  };
  const wanted = name(focused);
  const alike = () =>
    /** @type {HTMLElement[]} */ ([...root.querySelectorAll(FOCUSABLE)]).filter(
      (of) => name(of) === wanted,
    );
  const place = alike().indexOf(/** @type {HTMLElement} */ (focused));
  redraw();
  const isLost = !focused.isConnected && document.activeElement === document.body;
  if (isLost) alike()[place]?.focus({ preventScroll: true });
}

/**
 * A list of terms with their values.
 * @param {[string, Child][]} pairs
 * @param {string} [name]
 */
export function terms(pairs, name = "terms") {
  const rows = pairs.map(([term, value]) => h("div", {}, h("dt", {}, term), h("dd", {}, value)));
  return h("dl", { class: name }, ...rows);
}

/**
 * A plain table. A column whose head begins with `#` contains numbers.
 * @param {string} caption
 * @param {string[]} heads
 * @param {Child[][]} rows
 */
export function table(caption, heads, rows) {
  const isNumber = heads.map((head) => head.startsWith("#"));
  const titles = heads.map((head) => head.replace("#", ""));
  const head = titles.map((title, i) =>
    h("th", { scope: "col", class: isNumber[i] && "n" }, title),
  );
  const body = rows.map((cells) =>
    h(
      "tr",
      {},
      ...cells.map((cell, i) =>
        h("td", { class: isNumber[i] && "n", "data-label": titles[i] }, cell),
      ),
    ),
  );
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      { class: "plain" },
      h("caption", { class: "hidden" }, caption),
      h("thead", {}, h("tr", {}, ...head)),
      h("tbody", {}, ...body),
    ),
  );
}

/**
 * The head of the column that names the instances. Empty if the rows come from one instance.
 * @param {{instance?: string}[]} rows
 */
export function instanceHead(rows) {
  return rows.some((of) => of.instance) ? ["Instance"] : [];
}

/** @param {{instance?: string}} of */
export function instanceCell(of) {
  return of.instance ? [of.instance] : [];
}

/**
 * A section with a heading.
 * @param {string} title
 * @param {Child[]} children
 */
export function section(title, ...children) {
  return h("section", { "aria-label": title }, h("h2", {}, title), ...children);
}

/**
 * A label of a horizontal axis. At the right edge, a label ends at its position, so that the label
 * does not widen the page on a phone.
 * @param {number} at the position from 0 to 1
 * @param {string} text
 */
export function axisLabel(at, text) {
  return h("span", { class: at > 0.97 && "left", "--at": `${at * 100}%` }, text);
}

/**
 * A sentence that is shown instead of data.
 * @param {string} text
 */
export function note(text) {
  return h("p", { class: "note" }, text);
}
