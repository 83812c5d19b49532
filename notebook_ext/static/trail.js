// History of selections in all views, for going back and forward. No DOM here.

const TRAIL_LENGTH = 500;

export class Trail {
  constructor() {
    /** @type {string[]} */
    this.past = [];
    this.at = -1;
  }

  /** The current place. */
  get here() {
    return this.past[this.at];
  }

  /** Add a place; places ahead of the current one are dropped. @param {string} place */
  add(place) {
    if (place === this.here) return;
    this.past.splice(this.at + 1);
    this.past.push(place);
    if (this.past.length > TRAIL_LENGTH) this.past.shift();
    this.at = this.past.length - 1;
  }

  /** The place one step back (-1) or forth (1); undefined at the end. @param {1 | -1} step */
  go(step) {
    const place = this.past[this.at + step];
    if (place !== undefined) this.at += step;
    return place;
  }
}
