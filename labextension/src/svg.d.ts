/** JupyterLab's builder gives icons as text. */
declare module '*.svg' {
  const text: string;
  export default text;
}
