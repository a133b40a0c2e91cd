// Elements from plain values. Texts become text nodes, never markup, because clients choose ids and names.

const SVG_SPACE = "http://www.w3.org/2000/svg";

export function el(name, attributes = {}, ...children) {
  return filled(document.createElement(name), attributes, children);
}

export function svg(name, attributes = {}, ...children) {
  return filled(document.createElementNS(SVG_SPACE, name), attributes, children);
}

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") node.addEventListener(name, value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== null && value !== undefined) node.setAttribute(name, String(value));
  }
  node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined));
  return node;
}

// Sets a text only if it differs, because an unchanged node costs no layout.
export function setText(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// A client's text, isolated so that its writing direction does not affect its surroundings.
export function apart(text) {
  return el("bdi", {}, text);
}

export function factList(facts) {
  const rows = facts.filter(([, value]) => value !== null && value !== undefined && value !== "");
  return el("dl", { class: "facts" }, rows.map(([term, value]) => el("div", {}, el("dt", {}, term), el("dd", {}, apart(value)))));
}

export function legendOf(entries) {
  return el("ul", { class: "legend" }, entries.map(([style, text]) => el("li", {}, el("i", { class: style }), text)));
}
