// Splits a line of code into keywords, strings, numbers and comments: enough for colors, not a parser.

const PATTERNS = {
  python: /(#.*$)|("""[^]*?(?:"""|$)|'''[^]*?(?:'''|$)|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?)|((?<![\w.])(?:\d[\d_]*\.?\d*(?:e[-+]?\d+)?|0x[\da-f]+)\b)|((?:@[\w.]+)|\b(?:and|as|assert|async|await|break|class|continue|def|del|elif|else|except|False|finally|for|from|global|if|import|in|is|lambda|None|nonlocal|not|or|pass|raise|return|self|super|True|try|while|with|yield)\b)/gi,
  mlir: /(\/\/.*$|#loc.*$)|("(?:[^"\\]|\\.)*")|((?<![\w.%@])-?\d[\d.]*(?:e[-+]?\d+)?\b)|(\b(?:tt|ttg|arith|math|scf|cf|nvvm|gpu|llvm|ttng|amdg|tensor)\.[\w.]+)/gi,
  llvm: /(;.*$)|("(?:[^"\\]|\\.)*")|((?<![\w.%@])-?(?:0x[\da-f]+|\d[\d.]*(?:e[-+]?\d+)?)\b)|(\b(?:define|declare|call|ret|br|load|store|fmul|fadd|fsub|fdiv|select|icmp|fcmp|getelementptr|bitcast|extractvalue|insertvalue|phi|add|mul|shl|and|or|xor|sext|zext|trunc)\b)/gi,
  assembly: /(\/\/.*$|;\s*\/\*.*$)|("(?:[^"\\]|\\.)*")|((?<![\w.%$])-?(?:0x[\da-f]+|0f[\da-f]{8}|\d[\d.]*(?:e[-+]?\d+)?)\b)|((?<=^\s*(?:@!?%?\w+\s+)?(?:[\da-f]{4}\s+)?)[a-z_][\w.:]+)/gi,
  cpp: /(\/\/.*$|#\w+.*$)|("(?:[^"\\]|\\.)*")|((?<![\w.])\d[\d.]*(?:e[-+]?\d+)?[fLu]*\b)|(\b(?:auto|bool|break|case|char|const|continue|double|else|extern|float|for|if|int|int64_t|long|return|static_cast|struct|template|unsigned|using|void|while)\b)/g,
  bytecode: /(\(.*\)$)|("(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*')|((?<= )-?\d[\d.]*(?:e[-+]?\d+)?$)|(^[A-Z_]+)/g,
};
const CLASSES = ["c", "s", "d", "k"];
const LONGEST = 2000;

/**
 * Split a line into runs: [class, text], class "" for plain text.
 * @param {string} line
 * @param {string} language
 * @returns {[string, string][]}
 */
export function tokens(line, language) {
  const pattern = PATTERNS[/** @type {keyof typeof PATTERNS} */ (language)];
  if (!pattern || line.length > LONGEST) return [["", line]];
  /** @type {[string, string][]} */
  const runs = [];
  let end = 0;
  for (const found of line.matchAll(pattern)) {
    if (!found[0]) continue;
    if (found.index > end) runs.push(["", line.slice(end, found.index)]);
    runs.push([CLASSES[found.slice(1).findIndex((g) => g !== undefined)] || "", found[0]]);
    end = found.index + found[0].length;
  }
  if (end < line.length) runs.push(["", line.slice(end)]);
  return runs;
}

/**
 * Split runs at two columns and mark the text between: [class, text, isMarked].
 * @param {[string, string][]} runs
 * @param {number} from
 * @param {number} to
 * @returns {[string, string, boolean][]}
 */
export function marked(runs, from, to) {
  /** @type {[string, string, boolean][]} */
  const out = [];
  let at = 0;
  for (const [kind, text] of runs) {
    const cuts = [0, Math.min(Math.max(from - at, 0), text.length), Math.min(Math.max(to - at, 0), text.length), text.length];
    for (let i = 0; i < 3; i++) if (cuts[i + 1] > cuts[i]) out.push([kind, text.slice(cuts[i], cuts[i + 1]), i === 1]);
    at += text.length;
  }
  return out;
}
