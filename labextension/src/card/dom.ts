/** Make an element with a class and text. */
export function element<K extends keyof HTMLElementTagNameMap>(
  tag: K,
  className = '',
  text = ''
): HTMLElementTagNameMap[K] {
  const node = document.createElement(tag);
  node.className = className;
  node.textContent = text;
  return node;
}

/** Set text only if it's another one: what doesn't change isn't laid out again. */
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set an attribute only if it has another value; an empty one takes it away. */
export function setAttribute(node: Element, name: string, value: string): void {
  if ((node.getAttribute(name) ?? '') !== value) {
    if (value) {
      node.setAttribute(name, value);
    } else {
      node.removeAttribute(name);
    }
  }
}
