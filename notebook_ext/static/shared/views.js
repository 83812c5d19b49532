// Loaded view classes, and the exports that views loaded later may use.

/** View classes by id. @type {Map<string, any>} */
export const VIEWS = new Map();

/** All exports of the modules by name; the bundle fills it. @type {Record<string, any>} */
export const SHARED = {};
