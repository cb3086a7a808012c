import { readFileSync } from 'node:fs';
import { defineConfig } from 'vitest/config';

/** Icons are imported as text, as JupyterLab's builder does it. */
const svgAsText = {
  name: 'svg-as-text',
  enforce: 'pre' as const,
  load(id: string) {
    return id.endsWith('.svg') ? `export default ${JSON.stringify(readFileSync(id, 'utf8'))}` : null;
  }
};

export default defineConfig({
  plugins: [svgAsText],
  test: {
    environment: 'jsdom',
    // One document for all files: to make one for each takes six times as long as all tests.
    pool: 'threads',
    isolate: false,
    setupFiles: ['tests/setup.ts'],
    include: ['tests/**/*.test.{ts,tsx}'],
    server: { deps: { inline: [/@jupyter/, /@lumino/] } }
  }
});
