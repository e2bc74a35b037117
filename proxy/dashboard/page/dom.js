// The few things that the page does with elements: make them, change what has changed, keep lists in step.

const SVG = "http://www.w3.org/2000/svg";

export const at = (id) => document.getElementById(id);

// Text is only ever set as text: whatever a node or a client calls itself stays letters.
export function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  set(element, attributes);
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
}

export function draw(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  set(element, attributes);
  element.append(...children);
  return element;
}

export function set(element, attributes) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) element.removeAttribute(name);
    else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, String(value));
  }
}

export function say(element, text) {
  const wanted = String(text);
  if (element.textContent !== wanted) element.textContent = wanted;
}

// Bring a list's elements in line with items, by key; what stays is changed in place, so that focus stays as well.
export function keep(list, items, key, create, change) {
  const known = list.kept ?? (list.kept = new Map());
  const wanted = new Set(items.map(key));
  for (const [name, element] of known) {
    if (!wanted.has(name)) {
      element.remove();
      known.delete(name);
    }
  }
  const focused = list.contains(document.activeElement) ? document.activeElement : null;
  let place = list.firstElementChild;
  for (const item of items) {
    const name = key(item);
    let element = known.get(name);
    if (!element) {
      element = create(item);
      known.set(name, element);
    }
    if (element === place) place = place.nextElementSibling;
    else list.insertBefore(element, place);
    change(element, item);
  }
  if (focused?.isConnected && document.activeElement !== focused) focused.focus({ preventScroll: true }); // it was moved
}
