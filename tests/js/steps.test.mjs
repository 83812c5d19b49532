import assert from "node:assert/strict";
import test from "node:test";
import { load } from "./load.mjs";

const { Timeline, countUpTo, tickPlaces } = await load("steps.js");

/** A part from rows [frame, depth, line, stack as text, caller, event]; each line is its own row and instruction. */
function made(rows, more = {}) {
  const strings = [], cells = [], ops = [];
  const string = (s) => (strings.includes(s) ? strings.indexOf(s) : strings.push(s) - 1);
  const cell = (text) => text.split(" ").filter(Boolean).reduce((below, value) => {
    const found = cells.findIndex((c) => c[0] === below && strings[c[1]] === value);
    return found >= 0 ? found : cells.push([below, string(value), value.startsWith("t") ? string(value) : -1]) - 1;
  }, -1);
  const op = (line) => {
    const found = ops.findIndex((o) => o[5] === line);
    return found >= 0 ? found : ops.push([line > 9 ? 1 : 0, line * 2, string("OP"), string(""), line - 1, line, -1, -1]) - 1;
  };
  const { locals = [], nodes = [], guards = [], effects = [] } = more;
  return {
    count: rows.length, frame: rows.map((r) => r[0]), depth: rows.map((r) => r[1]), op: rows.map((r) => op(r[2])), stack: rows.map((r) => cell(r[3])), caller: rows.map((r) => r[4]), event: rows.map((r) => r[5] || 0),
    locals: locals.map(([k, frame, name, text]) => [k, frame, string(name), text === "" ? -1 : string(text), text.startsWith("t") ? string(text) : -1]),
    nodes: nodes.map(([k, n]) => [k, string(n)]), guards, effects, ops, cells, strings, codes: ["f", "g"],
  };
}

// f: lines 1, 2, 2 (call), g: lines 10, 11, back in f: line 2, 3.
const CALLS = made(
  [[0, 0, 1, "", -1], [0, 0, 2, "a b", -1], [0, 0, 2, "", 2, 1], [1, 1, 10, "", 2], [1, 1, 11, "t1", 2], [1, 1, 11, "a t1", -1, 2], [0, 0, 2, "a", -1], [0, 0, 3, "", -1, 4]],
  { locals: [[0, 0, "x", "1"], [2, 1, "k", "2"], [5, 0, "x", "t1"], [6, 0, "y", "t1"], [7, 0, "x", ""]], nodes: [[4, "t1"]], guards: [[1, 0]] },
);
const time = new Timeline(CALLS);
const texts = (k) => time.stack(k).map((v) => v.text).join(" ");
const variables = (k) => Object.fromEntries([...time.locals(k)].map(([name, v]) => [name, v.text]));

test("any step can be looked at in any order, and always looks the same", () => {
  const look = (k) => JSON.stringify([time.stack(k), [...time.locals(k)], time.frames(k)]);
  const forwards = Array.from({ length: 8 }, (_, k) => look(k));
  assert.deepEqual([7, 0, 5, 2, 6, 1, 4, 3].map(look), [7, 0, 5, 2, 6, 1, 4, 3].map((k) => forwards[k]));
  assert.equal(new Set(forwards).size, 8);
});

test("stack and variables are those of the frame that goes on", () => {
  assert.equal(texts(1), "a b");
  assert.deepEqual([texts(2), variables(2)], ["", { k: "2" }]);
  assert.deepEqual([texts(5), variables(5)], ["a t1", { x: "t1" }]);
  assert.deepEqual(variables(7), { y: "t1" });
});

test("what changed is marked: against the last time the same frame was shown", () => {
  assert.deepEqual(time.stack(5).map((v) => v.isNew), [false, true]);
  assert.equal(time.locals(5).get("x").isNew, true);
  assert.equal(time.locals(6).get("x").isNew, false);
});

test("frames lead back to the calls that entered them", () => {
  assert.deepEqual(time.frames(3).map((f) => [f.name, f.line]), [["g", 11], ["f", 2]]);
  assert.deepEqual(time.frames(5).map((f) => f.name), ["f"]);
});

test("lines, calls, ops and breaks are found in both directions", () => {
  assert.deepEqual([time.line(0, 1), time.line(1, 1), time.line(7, -1), time.line(7, 1), time.line(0, -1)], [1, 3, 6, -1, -1]);
  assert.deepEqual([time.into(0), time.into(3), time.out(3), time.out(0)], [3, -1, 6, -1]);
  assert.deepEqual([time.next(time.opSteps, 0, 1), time.next(time.opSteps, 4, 1), time.next(time.opSteps, 7, -1)], [4, -1, 4]);
  assert.deepEqual(time.breakSteps, [7]);
});

test("a breakpoint stops where its line is reached from another", () => {
  const line2 = new Set([1]);
  assert.deepEqual([time.stop(0, line2, 1), time.stop(1, line2, 1), time.stop(6, line2, 1), time.stop(7, line2, -1)], [1, 6, -1, 6]);
});

test("a value leads to the step that put it there, a node to the step that made it", () => {
  assert.equal(time.makers.get("t1"), 4);
  assert.equal(time.pushedBy(5, 0), 1);
  assert.equal(time.pushedBy(5, 1), 5);
  assert.equal(time.locals(6).get("x").step, 5);
});

test("steps up to a moment are counted, and ticks do not repeat", () => {
  assert.deepEqual([-1, 0, 4, 5, 9].map((k) => countUpTo([0, 4, 4, 9], k)), [0, 1, 3, 3, 4]);
  assert.deepEqual(tickPlaces([0, 1, 2, 9_999], 10_000, 100), [0, 1]);
});

test("one step among ten thousand is rebuilt in a few milliseconds, from the last frame's first step on", () => {
  const rows = Array.from({ length: 10_000 }, (_, k) => [0, 0, (k % 9) + 1, k % 3 ? "a b c" : "a", -1]);
  const locals = rows.map((_, k) => [k, 0, "v" + (k % 50), String(k % 7)]);
  const long = new Timeline(made(rows, { locals }));
  const start = performance.now();
  for (let i = 0; i < 50; i++) {
    const k = (i * 7919) % 10_000;
    long.stack(k);
    long.locals(k);
    long.frames(k);
  }
  assert.ok((performance.now() - start) / 50 < 10);
});
