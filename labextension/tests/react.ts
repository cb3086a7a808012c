import * as React from 'react';
import { act } from 'react';
import { createRoot, type Root } from 'react-dom/client';
import { afterEach, beforeAll } from 'vitest';

let mounted: { root: Root; node: HTMLElement }[] = [];

beforeAll(() => {
  (globalThis as { IS_REACT_ACT_ENVIRONMENT?: boolean }).IS_REACT_ACT_ENVIRONMENT = true;
});

afterEach(async () => {
  for (const { root, node } of mounted) {
    await act(async () => root.unmount());
    node.remove();
  }
  mounted = [];
});

/** Put an element on the page until the test is over. */
export async function show(element: React.ReactElement): Promise<HTMLElement> {
  const node = document.body.appendChild(document.createElement('div'));
  const root = createRoot(node);
  mounted.push({ root, node });
  await act(async () => root.render(element));
  return node;
}

/** Click what carries a text. */
export async function click(node: HTMLElement, text: string): Promise<void> {
  const button = [...node.querySelectorAll('button')].find(b => b.textContent === text);
  if (!button) {
    throw new Error(`there is no button ${text} in ${node.textContent}`);
  }
  await act(async () => button.click());
}

/** Type into an input as people do: React hears only of values that it did not set itself. */
export async function type(node: HTMLElement, selector: string, text: string): Promise<void> {
  const input = node.querySelector<HTMLInputElement>(selector);
  if (!input) {
    throw new Error(`there is no ${selector}`);
  }
  const prototype =
    input instanceof HTMLSelectElement ? HTMLSelectElement.prototype : HTMLInputElement.prototype;
  await act(async () => {
    Object.getOwnPropertyDescriptor(prototype, 'value')?.set?.call(input, text);
    input.dispatchEvent(
      new Event(input instanceof HTMLSelectElement ? 'change' : 'input', { bubbles: true })
    );
  });
}

/** Send the form off. */
export async function submit(node: HTMLElement): Promise<void> {
  await act(async () => {
    node.querySelector('form')?.dispatchEvent(new Event('submit', { bubbles: true, cancelable: true }));
  });
}
