// What the frame knows of its views: classes that are here, and what a view that is fetched later may use of this module.

/** View classes by id. @type {Map<string, any>} */
export const VIEWS = new Map();

/** Everything that the modules export, by name; filled in where they are joined. @type {Record<string, any>} */
export const SHARED = {};
