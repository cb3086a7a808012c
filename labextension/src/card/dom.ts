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

/** Set text only if it differs, so that unchanged text causes no layout. */
export function setText(node: Node, text: string): void {
  if (node.textContent !== text) {
    node.textContent = text;
  }
}

/** Set an attribute only if its value differs; an empty value removes it. */
export function setAttribute(node: Element, name: string, value: string): void {
  if ((node.getAttribute(name) ?? '') !== value) {
    if (value) {
      node.setAttribute(name, value);
    } else {
      node.removeAttribute(name);
    }
  }
}
