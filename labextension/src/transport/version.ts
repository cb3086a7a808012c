/** Version of this package; a test compares it to package.json. */
export const VERSION = '0.1.0';
