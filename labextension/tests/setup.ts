/** What JupyterLab's modules want of a browser when they are loaded, and jsdom hasn't. */
globalThis.DragEvent ??= class extends MouseEvent {} as typeof DragEvent;
