// The figure of each step. All of them get the walk, the word and head that are followed, and how
// far the step has been played: `beat` of `beats`.

import { html, useState } from "./vendor/preact.js";
import { shortened } from "./words.js";
import { Grid, HeadKey, Key, SIZE, figure, fitting, headColour, headInk, ofHead, pale, places, room, share, signed } from "./explain-grids.js";

const titled = (columns, heads) => heads.flatMap((h) => places(columns, `head ${h}, number`));
const joined = (heads) => heads[0].map((_, i) => heads.flatMap((head) => head[i])); // (heads, words, n) → (words, heads · n)
const columnsOf = (matrix) => matrix[0][0].map((_, c) => matrix.flatMap((head) => head.map((row) => row[c])));

/** What goes in: a row of numbers for each word. */
function Words({ walk, follow, beat, pick }) {
  if (!walk.x) {
    return html`<ol class="tokens">${walk.words.map((word, i) => html`<li class=${i === follow ? "followed" : ""}><small>${i}</small>${word}</li>`)}</ol>`;
  }
  const columns = walk.x[0].length, cell = fitting(columns + 6, walk.words.length, room.wide - 60, room.high - 50, 34);
  return html`<div class="side"><${Grid} name="x" note=${`a row for each word, ${walk.dims} numbers each`} rows=${walk.words} columns=${places(columns)} values=${walk.x} colour=${signed(SIZE)} cell=${cell}
      labels follow=${follow} there=${(r) => r < beat} pick=${pick} /></div><${Key} most=${SIZE} />`;
}

/** x stands left, a matrix above, and what they make where their rows and columns meet. */
function ProjectIn({ walk, follow, beat, pick }) {
  const { heads, words } = walk, each = walk.query[0][0].length, wide = each * heads.length, dims = walk.x[0].length;
  const cell = fitting(dims + 3 * wide, dims + words.length, room.wide - 180, room.high - 56, 18);
  const made = [["q", "query", "W_q"], ["k", "key", "W_k"], ["v", "value", "W_v"]];
  return html`<div class="product four">
    <div class="empty"><${Key} most=${SIZE} /><${Key} most=${SIZE * walk.dims ** -0.5} digits=${2} of="W: " /></div>
    ${made.map(([, , matrix], m) => html`<div class=${beat <= m ? "waiting" : ""}><${Grid} name=${`${matrix}ᵀ`} cell=${cell}
      rows=${places(dims, "number")} columns=${titled(each, heads)} values=${columnsOf(walk.matrices[matrix])}
      colour=${signed(SIZE * walk.dims ** -0.5)} bands=${heads} each=${each} /></div>`)}
    <${Grid} name="x" rows=${words} columns=${places(dims)} values=${walk.x} colour=${signed(SIZE)} cell=${cell} labels follow=${follow} pick=${pick} />
    ${made.map(([short, name], m) => html`<div class=${beat <= m ? "waiting" : ""}><${Grid} name=${name} title=${short} note=${name} cell=${cell}
      rows=${words} columns=${titled(each, heads)} values=${joined(walk[name])} colour=${signed(SIZE)} bands=${heads} each=${each} follow=${follow} pick=${pick} /></div>`)}
  </div>`;
}

function Split({ walk, follow, head, beat, pick }) {
  const { heads, words } = walk, names = ["query", "key", "value"], each = walk.query[0][0].length;
  const wide = heads.length <= 4, across = wide ? Math.min(heads.length, 2) : 4, down = Math.ceil(heads.length / across);
  const cell = fitting(3 * each, words.length, room.wide / across - (wide ? 318 : 140), room.high / down - (wide ? 84 : 134), 24);
  const numbers = (at) => html`<table class="few"><caption>${shortened(words[follow], 20)}</caption><tbody>${names.map((name) => html`<tr><th scope="row">${name}</th><${Few} values=${walk[name][at][follow]} digits=${1} all=${walk.head_dim} /></tr>`)}</tbody></table>`;
  return html`<div class="cards" style=${`--across:${across}`}>${heads.map((h, at) => html`<section class=${`card ${at === head ? "here" : ""} ${at < beat ? "" : "waiting"}`} style=${`--head:${headColour(h)}`}>
    <h2>head ${h}</h2><div class=${wide ? "beside" : ""}><div class="three-grids">${names.map((name, n) => html`<${Grid} name=${`${name}, head ${h}`} title=${name[0]} rows=${words} columns=${places(each)} values=${walk[name][at]} colour=${signed(SIZE)} cell=${cell} labels=${n === 0}
        follow=${follow} pick=${(i) => pick(i, at)} />`)}</div>${numbers(at)}</div></section>`)}</div><${Key} most=${SIZE} />`;
}

/** A vector in print, four numbers of it. */
function Few({ values, digits = 2, all = values.length }) {
  return html`${values.slice(0, 4).map((v) => html`<td>${figure(v, digits)}</td>`)}${all > 4 && html`<td>…</td>`}`;
}

/** A number for each word, below the words, as the terminal prints it. */
function Row({ walk, lines, beat, follow }) {
  const cut = walk.all_words > walk.words.length, wide = Math.min(84, Math.floor((room.wide - 210) / walk.words.length));
  return html`<table class="row-of" style=${`--wide:${wide}px`}><thead><tr><th></th>${walk.words.map((word, j) => html`<th scope="col" class=${j === follow ? "followed" : ""} title=${word}>${shortened(word, 10)}</th>`)}</tr></thead>
    <tbody>${lines.map(({ label, values, show = figure, colour, end = "" }) => html`<tr><th scope="row">${label}</th>
      ${values.map((v, j) => html`<td class=${`${v === null ? "hid" : ""} ${j < beat ? "" : "later"}`} style=${v === null || !colour ? "" : `--swatch:${colour(v)}`}>${show(v)}</td>`)}
      ${(end || cut) && html`<td class="end">${end}</td>`}</tr>`)}</tbody></table>`;
}

/** The maps of all heads: queries down, keys across. */
function Maps({ walk, values, colour, follow, head, pick, unit, beat = Infinity, less = 0, what }) {
  const { heads, words } = walk, n = words.length;
  const size = (across) => fitting(n, n, (room.wide - 110 - 30 * across) / across, (room.high - 100 - less) / Math.ceil(heads.length / across) - 48, 34);
  const across = [Math.min(4, heads.length), heads.length].reduce((a, b) => (size(b) > size(a) ? b : a)), cell = size(across);
  return html`<div class="maps" style=${`--across:${across}`}>${heads.map((h, at) => html`<div class=${at === head ? "here" : ""}><${Grid} name=${`${what}, head ${h}`} title=${`head ${h}`} dot=${h} rows=${words} columns=${words} values=${values[at]} colour=${colour(h)} cell=${cell} labels=${at % across === 0} unit=${unit}
      letters=${cell > 9 ? words.map((w) => [...w.replace(/^[·⏎]+(?=.)/, "")][0]) : null} follow=${at === head ? follow : -1} pick=${(i) => pick(i, at)}
      there=${(r, c) => at !== head || r !== follow || c < beat} /></div>`)}</div>`;
}

const others = (walk) => ((left) => `${left} ${walk.x ? "word" : "token"}${left === 1 ? "" : "s"}`)(walk.all_words - walk.words.length);
const top = (walk) => Math.max(0.01, ...walk.dots.flat(2).map(Math.abs));

function Score(props) {
  const { walk, follow, head, beat, beats } = props, [chosen, choose] = useState(null), most = top(walk);
  const dots = walk.dots[head][follow], best = dots.indexOf(Math.max(...dots));
  const j = beat < beats ? Math.max(0, beat - 1) : Math.min(chosen ?? best, dots.length - 1);
  return html`${walk.query && html`<${Dot} walk=${walk} head=${head} i=${follow} j=${j} choose=${choose} total=${dots[j]} />`}
    <${Row} walk=${walk} follow=${follow} beat=${beat} lines=${[{ label: "q · k", values: dots, colour: signed(most) }]} />
    <${Maps} ...${props} values=${walk.dots} colour=${() => signed(most)} less=${walk.query ? 92 : 0} what="q · k" /><${Key} most=${most} digits=${1} />`;
}

/** One score, number by number. */
function Dot({ walk, head, i, j, total, choose }) {
  const few = Math.min(walk.query[head][i].length, 8), h = walk.heads[head];
  const q = walk.query[head][i].slice(0, few), k = walk.key[head][j].slice(0, few), products = q.map((v, n) => v * k[n]);
  const more = walk.head_dim - few, rest = total - products.reduce((a, b) => a + b, 0);
  const line = (label, values, last) => html`<tr><th scope="row">${label}</th>${values.map((v) => html`<td style=${`background:${pale(SIZE)(v)}`}>${figure(v)}</td>`)}<td class="end">${last}</td></tr>`;
  return html`<div class="dot-product"><table class="printed"><tbody>
    ${line(`query of ${shortened(walk.words[i], 12)}`, q, more > 0 ? `… ${more} more` : "")}
    ${line(`× key of ${shortened(walk.words[j], 12)}`, k, "")}
    ${line("products", products, html`${more > 0 && html`+ ${figure(rest)} of the rest `}= <b style=${`color:${headInk(h)}`}>${figure(total)}</b>`)}</tbody></table>
    <label class="note">key of <select value=${j} onChange=${(e) => choose(Number(e.target.value))}>${walk.words.map((word, at) => html`<option value=${at}>${shortened(word, 20)}</option>`)}</select></label></div>`;
}

function Scale(props) {
  const { walk, follow, head, beat } = props, most = top(walk);
  const labels = { dots: "q · k", scaled: walk.x ? "÷ √head_dim" : "scaled", capped: "capped", biased: "biased" };
  const stages = Object.keys(labels).filter((name) => walk[name]), last = stages[stages.length - 1];
  return html`<${Row} walk=${walk} follow=${follow} beat=${beat} lines=${stages.map((name) => ({ label: labels[name], values: walk[name][head][follow], colour: signed(most) }))} />
    <${Maps} ...${props} values=${walk[last]} colour=${() => signed(most)} less=${26 * (stages.length - 1)} what=${labels[last]} /><${Key} most=${most} digits=${1} />`;
}

function Mask(props) {
  const { walk, follow, head, beat } = props, most = top(walk);
  return html`<${Row} walk=${walk} follow=${follow} beat=${beat} lines=${[{ label: "masked", values: walk.masked[head][follow], colour: signed(most) }]} />
    <${Maps} ...${props} values=${walk.masked} colour=${() => signed(most)} what="masked score" /><${Key} most=${most} digits=${1} />`;
}

function Softmax(props) {
  const { walk, follow, head, beat, beats } = props, weights = walk.weights[head][follow], rest = walk.rest[head][follow];
  const scores = walk.masked[head][follow], powers = scores.map((s) => (s === null ? 0 : Math.exp(s)));
  const sum = powers.reduce((a, b) => a + b, 0), added = weights.reduce((a, b) => a + b, 0);
  const colour = ofHead(walk.heads[head]), done = beat >= beats, whole = rest === 0 && walk.x;
  const lines = [{ label: "score", values: scores }, { label: "weights", values: weights, show: share, colour, end: done ? html`Σ = <b>${share(added)}</b>${rest > 0 && html` + ${share(rest)}`}` : "" }];
  if (whole) lines.splice(1, 0, { label: "exp", values: powers, end: done ? html`Σ = <b>${figure(sum)}</b>` : "" });
  const shown = walk.weights.map((map, h) => map.map((row, i) => row.map((w, j) => (walk.masked[h][i][j] === null ? null : w))));
  return html`<${Row} walk=${walk} follow=${follow} beat=${beat} lines=${lines} />
    ${rest > 0 && html`<p class="note">The other ${others(walk)}: ${share(rest)} together.</p>`}
    <${Maps} ...${props} values=${shown} colour=${ofHead} less=${80} unit=${(w) => (w === null ? "0 %, forbidden" : `${(100 * w).toFixed(1)} %`)} what="weight" />
    <${HeadKey} head=${walk.heads[head]} />`;
}

function Weigh({ walk, follow, head, beat, beats, pick }) {
  const { words, heads } = walk, h = heads[head], weights = walk.weights[head][follow], values = walk.value[head], out = walk.out[head][follow];
  const few = Math.min(out.length, heads.length > 6 ? 3 : words.length > 12 ? 4 : 6), colour = pale(SIZE), left = walk.all_words - words.length;
  const found = out.slice(0, few), high = fitting(1, words.length + 3, 99, room.high - 10, 26, 15);
  const numbers = (row, make = figure) => row.slice(0, few).map((v) => html`<td style=${`background:${colour(v)}`}>${make(v)}</td>`);
  const adds = found.map((total, n) => total - values.reduce((sum, row, j) => sum + weights[j] * row[n], 0));
  const cell = fitting(heads.length * out.length, words.length, room.wide - 230 - 112 * few - 10 * heads.length, room.high - 60, 18);
  return html`<div class="side"><table class="printed weigh" style=${`--line:${high}px`}>
    <thead><tr><th></th><th scope="col" colspan="2">weight</th><th scope="col" colspan=${few}>× value</th><th></th><th scope="col" colspan=${few}>= what it adds</th></tr></thead>
    <tbody>${words.map((word, j) => html`<tr class=${`${weights[j] > 0 ? "" : "nothing"} ${j < beat ? "" : "later"}`}><th scope="row" title=${word}>${shortened(word, 12)}</th><td class="bar"><span style=${`width:${100 * weights[j]}%;background:${headColour(h)}`}></span></td>
      <td class="end">${share(weights[j])}</td>${numbers(values[j])}<td class="gap"></td>${numbers(values[j].map((v) => v * weights[j]))}</tr>`)}
    ${left > 0 && html`<tr><th scope="row">${left} others</th><td></td><td class="end">${share(walk.rest[head][follow])}</td>${found.map(() => html`<td></td>`)}<td class="gap"></td>${numbers(adds)}</tr>`}
    <tr class=${`sum ${beat >= beats ? "" : "later"}`}><th scope="row">sum</th><td></td><td class="end">${share(weights.reduce((a, b) => a + b, walk.rest[head][follow]))}</td>${found.map(() => html`<td></td>`)}<td class="gap"></td>${numbers(found)}</tr></tbody></table>
    <div class="found"><p class="note">what each head finds for every word</p><div class="row">${heads.map((one, at) => html`<${Grid} name=${`found by head ${one}`} title=${cell * out.length < 60 ? one : `head ${one}`} dot=${one} rows=${words} columns=${places(out.length)} values=${walk.out[at]} colour=${signed(SIZE)} cell=${cell} follow=${at === head ? follow : -1} pick=${(i) => pick(i, at)} />`)}</div><${Key} most=${SIZE} /></div></div>`;
}

function Concatenate({ walk, follow, head, beat, pick }) {
  const { words, heads } = walk, each = walk.out[0][0].length;
  const cell = fitting(each * heads.length + 5, words.length, room.wide - 120, room.high - 190, 30);
  return html`<div class="joining">${heads.map((h, at) => html`<div class=${`${at < beat ? "near" : "apart"} ${at === head ? "here" : ""}`}>
      <${Grid} name=${`head ${h}`} title=${cell * each < 60 ? h : `head ${h}`} dot=${h} rows=${words} columns=${places(each)} values=${walk.out[at]} colour=${signed(SIZE)} cell=${cell} labels=${at === 0} bands=${[h]} each=${each}
        follow=${follow} pick=${(i) => pick(i, at)} /></div>`)}</div><${Key} most=${SIZE} />
    <div class="vectors">${heads.map((h, at) => html`<table class="few" style=${`--head:${headColour(h)}`}><caption>head ${h}</caption><tbody><tr><${Few} values=${walk.out[at][follow]} all=${walk.head_dim} /></tr></tbody></table>`)}</div>`;
}

function ProjectOut({ walk, follow, beat, pick }) {
  const { words, heads } = walk, each = walk.out[0][0].length, dims = walk.y[0].length, rows = heads.flatMap((h) => places(each, `head ${h}, number`));
  const cell = fitting(each * heads.length + dims + 8, each * heads.length + words.length, room.wide - 360, room.high - 64, 17);
  return html`<div class="side"><div class="product two">
    <div class="empty"><${Key} most=${SIZE} /><${Key} most=${SIZE * walk.dims ** -0.5} digits=${2} of="W: " /></div>
    <${Grid} name="W_oᵀ" rows=${rows} columns=${places(dims)} values=${walk.matrices["W_oᵀ"].flat()} colour=${signed(SIZE * walk.dims ** -0.5)} cell=${cell} bands=${heads} each=${each} along="rows"
      there=${(r) => Math.floor(r / each) < beat} />
    <${Grid} name="heads side by side" rows=${words} columns=${titled(each, heads)} values=${joined(walk.out)} colour=${signed(SIZE)} cell=${cell} labels bands=${heads} each=${each} follow=${follow} pick=${pick} />
    <div class=${beat < heads.length ? "waiting" : ""}><${Grid} name="y" rows=${words} columns=${places(dims)} values=${walk.y} colour=${signed(SIZE)} cell=${cell} follow=${follow} pick=${pick} /></div></div>
    <div class="shares"><${Shares} walk=${walk} follow=${follow} beat=${beat} />
    <table class="few"><tbody><tr><th scope="row">y</th><${Few} values=${walk.y[follow]} all=${walk.dims} /></tr></tbody></table></div></div>`;
}

/** How long the share of each head is. */
function Shares({ walk, follow, beat, mine = -1 }) {
  const lengths = walk.shares[follow], longest = Math.max(...lengths, 1e-30);
  return html`<table class="bars"><caption>how long each head's share is</caption><tbody>${lengths.map((length, h) => html`<tr class=${`${h < beat ? "" : "later"} ${h === mine ? "followed" : ""}`}>
    <th scope="row">head ${h}</th><td class="bar"><span style=${`width:${(100 * length) / longest}%;background:${headColour(h)}`}></span></td><td class="end">${figure(length)}</td></tr>`)}</tbody></table>`;
}

function Out({ walk, follow, beat, pick }) {
  const dims = walk.x[0].length, cell = fitting(2 * dims + 10, walk.words.length, room.wide - 40, room.high - 190, 24);
  return html`<div class="side">${["x", "y"].map((name, n) => html`<div class=${beat > n ? "" : "waiting"}>
      <${Grid} name=${name} note=${n ? "what comes out" : "what went in"} rows=${walk.words} columns=${places(dims)} values=${walk[name]} colour=${signed(SIZE)} cell=${cell} labels=${n === 0} follow=${follow} pick=${pick} /></div>`)}</div><${Key} most=${SIZE} />
    <table class="ladder"><caption>The same steps on six rungs, each a page to read, all proven equal:</caption><tbody>${walk.ladder.map(([name, does], n) => html`<tr><td>${n + 1}</td><th scope="row">${name}</th><td>${does}</td></tr>`)}</tbody></table>`;
}

/** Of a real head: a weight is not yet an effect. */
function Moves({ walk, follow, beat }) {
  if (!walk.lengths) return null;
  const weights = walk.weights[0][follow], moved = weights.map((w, j) => w * walk.lengths[j]), most = Math.max(...moved, 1e-30), high = fitting(1, walk.words.length + 2, 99, room.high, 26, 15);
  return html`<table class="bars moves" style=${`--line:${high}px`}><thead><tr><th></th><th scope="col" class="end">weight</th><th scope="col" class="end">‖v W_O‖</th><th scope="col" class="end">moves</th><th></th></tr></thead>
    <tbody>${walk.words.map((word, j) => html`<tr class=${`${j < beat ? "" : "later"} ${walk.masked[0][follow][j] === null ? "nothing" : ""}`}><th scope="row">${shortened(word, 14)}</th>
      <td class="end">${share(weights[j])}</td><td class="end">${figure(walk.lengths[j])}</td><td class="end">${figure(moved[j])}</td><td class="bar"><span style=${`width:${(100 * moved[j]) / most}%;background:${headColour(walk.heads[0])}`}></span></td></tr>`)}</tbody></table>`;
}

function Join({ walk, follow, beat }) {
  return walk.shares && html`<${Shares} walk=${walk} follow=${follow} beat=${beat} mine=${walk.heads[0]} />`;
}

const byWord = (walk) => walk.words.length, byHead = (walk) => walk.heads.length;
/** What is drawn in a step, and in how many beats it is played. */
export const FIGURES = {
  words: [Words, byWord], project_in: [ProjectIn, () => 3], split: [Split, byHead],
  score: [Score, byWord], scale: [Scale, byWord], mask: [Mask, byWord], softmax: [Softmax, byWord],
  weigh: [Weigh, byWord], concatenate: [Concatenate, byHead], project_out: [ProjectOut, byHead], out: [Out, () => 2],
  moves: [Moves, byWord], join: [Join, (walk) => (walk.shares ? walk.shares[0].length : 1)],
};
