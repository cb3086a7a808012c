/** esbuild gives style sheets as text; only the card's own bundle imports one. */
declare module '*.css' {
  const text: string;
  export default text;
}
