// A timeline on a canvas: what is drawn in a frame depends on its pixels, not on the intervals.

const AXIS = 24, LANE = 18, LEVEL = 14, BETWEEN = 5;
const SHOWN_LEVELS = 4, MOST_LEVELS = 64;
const SHORTEST_NS = 20;
const NEAR = 3;
const IDLE = "#d55e00", FOUND = "#e6007e";
const UNITS = [[1e9, "s"], [1e6, "ms"], [1e3, "µs"], [1, "ns"]];
const HINT =
  "Click the picture, then: wheel or +/− to zoom, drag or arrow keys to move, 0 for all of it, " +
  "g for the next gap. Click a gap or a bar to see what it is.";

// -- words ------------------------------------------------------------------------------------

const digits = (value) =>
  Math.abs(value) >= 99.95 ? Math.round(value).toLocaleString("en") :
  Math.abs(value) >= 9.995 ? value.toFixed(1) : value.toFixed(2);

function lasting(ns) {
  const [scale, unit] = UNITS.find(([one]) => ns >= 0.9995 * one) ?? UNITS[3];
  return ns ? `${digits(ns / scale)} ${unit}` : "0 s";
}

function capacity(bytes) {
  const power = Math.min(4, Math.max(0, Math.floor(Math.log2(bytes || 1) / 10)));
  return `${power ? digits(bytes / 1024 ** power) : bytes} ${["B", "KiB", "MiB", "GiB", "TiB"][power]}`;
}

/** A point of time, in the unit and with the decimals of an axis of such steps, and some more. */
function instant(ns, step, more = 0) {
  const [scale, unit] = UNITS.find(([one]) => step >= 0.00995 * one) ?? UNITS[3];
  // No nanosecond has decimals.
  const places = scale === 1 ? 0 : Math.max(0, -Math.floor(Math.log10(step / scale) + 1e-9)) + more;
  return `${(ns / scale).toLocaleString("en", {
    minimumFractionDigits: places, maximumFractionDigits: places,
  })} ${unit}`;
}

const percent = (part) => (part < 0.0995 ? (100 * part).toFixed(1) : Math.round(100 * part)) + " %";

const cut = (text, most) =>
  text.length <= most ? text : text.slice(0, most * 0.6) + "…" + text.slice(-most * 0.4 + 1);

const bareNames = new Map();

/** A kernel's own name: C++ without namespaces, type and arguments. */
function bare(name) {
  if (!/^void |</.test(name)) return name;
  if (!bareNames.has(name)) bareNames.set(name, withoutArguments(
    name.replace(/(\(anonymous namespace\)|\w+)::/g, "").replace(/^void /, "")));
  return bareNames.get(name);
}

function withoutArguments(name) {
  if (!name.endsWith(")")) return name;
  let depth = 0, at = name.length;
  do depth += {")": 1, "(": -1}[name[--at]] ?? 0;
  while (depth && at > 0);
  return at ? name.slice(0, at) : name;
}

function element(tag, properties = {}, ...children) {
  const made = Object.assign(document.createElement(tag), properties);
  made.append(...children);
  return made;
}

// -- data -------------------------------------------------------------------------------------

/** First place in sorted `values` at or behind `from` whose value is at least `wanted`. */
function search(values, wanted, from = 0, to = values.length) {
  // A frame asks for places one after the other: the next one is near the last.
  let step = 1, low = from;
  while (low + step < to && values[low + step] < wanted) {
    low += step;
    step *= 2;
  }
  let high = Math.min(to, low + step + 1);
  while (low < high) {
    const middle = (low + high) >> 1;
    if (values[middle] < wanted) low = middle + 1;
    else high = middle;
  }
  return low;
}

/** The columns, and by lane one track for each level of nesting; a track has no overlap. */
function read(model) {
  const column = (name, type) => {
    const view = model.get(name);
    return new type(view.buffer.slice(view.byteOffset, view.byteOffset + view.byteLength));
  };
  const data = {
    ...model.get("words"),
    start: column("start", Float64Array),
    end: column("end", Float64Array),
    lane: column("lane", Uint16Array),
    kind: column("kind", Uint8Array),
    name: column("name", Uint32Array),
  };
  const count = data.start.length;
  data.length = Math.max(1, data.end.reduce((a, b) => Math.max(a, b), 0));
  data.level = new Uint8Array(count);
  const open = data.lanes.map(() => []);
  const sizes = data.lanes.map(() => []);
  for (let row = 0; row < count; row++) {
    const ends = open[data.lane[row]], size = sizes[data.lane[row]];
    while (ends.length && ends[ends.length - 1] <= data.start[row]) ends.pop();
    const level = Math.min(ends.length, MOST_LEVELS);
    data.level[row] = level;
    size[level] = (size[level] ?? 0) + 1;
    ends.push(data.end[row]);
  }
  data.tracks = sizes.map((levels) => levels.slice(0, MOST_LEVELS).map(emptyTrack));
  for (let row = 0; row < count; row++) {
    const track = data.tracks[data.lane[row]][data.level[row]];
    if (track) put(track, row, data.start[row], data.end[row]);
  }
  return data;
}

const emptyTrack = (size) => ({
  size: 0,
  row: new Uint32Array(size),
  start: new Float64Array(size),
  end: new Float64Array(size),
  sum: new Float64Array(size + 1), // of all durations before
  hits: null, // how many before are found by the search
});

function put(track, row, start, end) {
  const at = track.size++;
  track.row[at] = row;
  track.start[at] = start;
  track.end[at] = end;
  track.sum[at + 1] = track.sum[at] + end - start;
}

// -- one view ---------------------------------------------------------------------------------

class Timeline {
  constructor(model, root) {
    this.model = model;
    this.root = root;
    this.data = read(model);
    this.range = [0, this.data.length];
    this.opened = new Set();
    this.match = null; // by name: is it found?
    this.matches = [];
    this.chosen = null; // {row} or {gap}
    this.known = new Map(); // by row: what the kernel answered
    this.pointers = new Map();
    this.build();
    this.layOut();
    this.listen();
    this.explain();
  }

  build() {
    const button = (text, label, act) => {
      const made = element("button", {type: "button", textContent: text, title: label});
      made.setAttribute("aria-label", label);
      made.addEventListener("click", act);
      return made;
    };
    const group = (...parts) => element("div", {className: "group"}, ...parts);
    this.input = element("input", {type: "search", placeholder: "search names"});
    this.input.setAttribute("aria-label", "search names; Enter for the next, Shift+Enter for the one before");
    this.count = element("output", {className: "count"});
    this.gapCount = element("output", {className: "count"});
    this.canvas = element("canvas", {tabIndex: 0});
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-roledescription", "timeline");
    this.canvas.setAttribute("aria-label", `${this.data.title}. ${HINT}`);
    this.labels = element("div", {className: "labels"});
    this.scroll = element("div", {className: "scroll"}, this.labels, element("div", {}, this.canvas));
    this.tip = element("div", {className: "tip", hidden: true});
    this.panel = element("div", {className: "panel"});
    this.panel.setAttribute("aria-live", "polite");
    const gapButtons = [
      button("‹", "the next longer gap", () => this.stepGap(-1)),
      button("›", "the next shorter gap", () => this.stepGap(1)),
    ];
    for (const one of gapButtons) one.disabled = !this.data.gaps.length;
    const bar = element("div", {className: "bar"},
      group(this.input, button("‹", "previous found", () => this.stepMatch(-1)),
        button("›", "next found", () => this.stepMatch(1)), this.count),
      group(element("span", {textContent: "gaps"}), ...gapButtons, this.gapCount),
      group(button("−", "zoom out", () => this.zoom(1.6)), button("+", "zoom in", () => this.zoom(1 / 1.6)),
        button("all", "show all of it", () => this.fit())),
    );
    this.root.classList.add("perfkit-timeline");
    // JupyterLab's shortcuts (0 0 restarts the kernel) are not meant for keys that are typed here.
    this.root.dataset.lmSuppressShortcuts = "true";
    this.root.append(bar, this.scroll, this.legend(), this.panel, this.tip);
    this.canvas.dataset.intervals = this.data.start.length;
  }

  legend() {
    const used = new Set(this.data.kind);
    const entry = (colour, word) =>
      element("span", {}, element("i", {style: `background:${colour}`}), word);
    const kinds = this.data.kinds.filter((_, code) => used.has(code));
    const unique = [...new Map(kinds.map((kind) => [kind.word, kind.colour]))];
    const parts = unique.map(([word, colour]) => entry(colour, word));
    if (this.data.gaps.length) {
      parts.push(entry(`repeating-linear-gradient(135deg,${IDLE} 0 1px,transparent 1px 4px)`, "idle"));
    }
    return element("div", {className: "legend"}, ...parts);
  }

  /** Where each lane begins, and its label. */
  layOut() {
    let y = 0;
    this.places = this.data.lanes.map((lane, code) => {
      const levels = this.data.tracks[code].length;
      const shown = this.opened.has(code) ? levels : Math.min(levels, SHOWN_LEVELS);
      const place = {y, shown, levels, height: levels > 1 ? LEVEL : LANE};
      y += shown * place.height + BETWEEN;
      return place;
    });
    this.height = y;
    const count = `${this.data.start.length.toLocaleString("en")} intervals`;
    const corner = element("div", {className: "corner", textContent: count});
    this.labels.replaceChildren(corner, ...this.places.map((place, code) => this.label(place, code)));
    this.labels.style.height = `${AXIS + this.height}px`;
    this.draw();
  }

  label(place, code) {
    const {device, name} = this.data.lanes[code];
    const text = device ? `${device}, ${name}` : name;
    const made = element("div", {className: "label", title: text}, text);
    made.style.top = `${AXIS + place.y}px`;
    made.style.height = `${place.shown * place.height}px`;
    if (place.levels > SHOWN_LEVELS) {
      const isOpen = this.opened.has(code);
      const toggle = element("button", {
        type: "button", textContent: isOpen ? "▾ fewer levels" : `▸ all ${place.levels} levels`,
      });
      toggle.setAttribute("aria-expanded", isOpen);
      toggle.setAttribute("aria-label", `${text}: ${toggle.textContent.slice(2)}`);
      toggle.addEventListener("click", () => {
        if (!this.opened.delete(code)) this.opened.add(code);
        this.layOut();
        this.labels.querySelectorAll(".label")[code].querySelector("button").focus();
      });
      made.append(toggle);
    }
    return made;
  }

  // -- drawing --------------------------------------------------------------------------------

  draw() {
    if (!this.frame) this.frame = requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.frame = 0;
    const begun = performance.now();
    const ratio = window.devicePixelRatio || 1;
    const width = this.canvas.parentElement.clientWidth;
    const height = Math.min(this.scroll.clientHeight || 440, AXIS + this.height);
    if (!width) return;
    this.canvas.style.height = `${height}px`;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    const style = getComputedStyle(this.root);
    const pen = this.canvas.getContext("2d");
    Object.assign(this, {pen, ratio, width: this.canvas.width, ink: style.color, font: style.fontFamily});
    this.scale = this.width / (this.range[1] - this.range[0]);
    pen.font = `${11 * ratio}px ${this.font}`;
    pen.textBaseline = "middle";
    this.letter = pen.measureText("0123456789abcdef").width / 16;
    pen.save();
    pen.beginPath();
    pen.rect(0, AXIS * ratio, this.width, this.canvas.height);
    pen.clip();
    this.grid(false);
    this.places.forEach((place, code) => this.paintLane(place, code, height));
    this.paintArrow();
    this.paintChosen();
    pen.restore();
    this.grid(true);
    this.canvas.dataset.range = this.range.join(" ");
    this.canvas.dataset.frameMs = (performance.now() - begun).toFixed(2);
  }

  top(place, level = 0) {
    return AXIS + place.y + level * place.height - this.scroll.scrollTop;
  }

  x(ns) {
    return (ns - this.range[0]) * this.scale;
  }

  paintLane(place, code, height) {
    const top = this.top(place), {pen, ratio} = this;
    const tall = place.shown * place.height;
    if (top > height || top + tall < AXIS) return;
    const {device, marks} = this.data.lanes[code];
    if (device && !marks) {
      const isFirst = this.data.lanes[code - 1]?.device !== device;
      this.paintGaps(device, top * ratio, tall * ratio, isFirst);
    }
    this.fill = this.alpha = null;
    for (let level = 0; level < place.shown; level++) {
      const track = this.data.tracks[code][level];
      const y = Math.round((top + level * place.height) * ratio);
      if (track) this.paintTrack(track, y, Math.round((place.height - 1) * ratio));
    }
    pen.globalAlpha = 1;
  }

  /** Bars of a pixel or more as they are; shorter ones by pixel, as dense as they cover it. */
  paintTrack(track, y, high) {
    const {range, scale, data} = this, {start, end, sum, size} = track;
    const last = search(start, range[1], 0, size);
    for (let at = search(end, range[0], 0, size); at < last; ) {
      const left = this.x(start[at]), right = this.x(end[at]);
      if (right - left >= 1) {
        this.bar(track, at, left, right, y, high);
        at++;
        continue;
      }
      const edge = Math.floor(left) + 1;
      let next = Math.max(at + 1, search(start, range[0] + edge / scale, at, last));
      // The last that begins in this pixel may be a long one: it is drawn by itself.
      if (next - at > 1 && this.x(end[next - 1]) >= edge + 1) next--;
      const covered = (sum[next] - sum[at]) * scale;
      const alone = next >= last || this.x(start[next]) > edge + 4;
      const found = track.hits && track.hits[next] > track.hits[at];
      this.use(found ? FOUND : data.kinds[this.common(track, at, next)].colour,
        found || !this.match ? Math.min(1, Math.max(alone ? 0.6 : 0.15, covered)) : 0.12);
      this.pen.fillRect(edge - 1, y, 1, high);
      at = next;
    }
  }

  /** The kind of the longest of a few intervals in [at, next). */
  common(track, at, next) {
    const step = Math.max(1, (next - at) >> 3);
    let longest = at;
    for (let one = at; one < next; one += step) {
      if (track.end[one] - track.start[one] > track.end[longest] - track.start[longest]) longest = one;
    }
    return this.data.kind[track.row[longest]];
  }

  bar(track, at, left, right, y, high) {
    const row = track.row[at], {pen, data, ratio} = this;
    const kind = data.kinds[data.kind[row]];
    const found = this.match && this.match[data.name[row]];
    const from = Math.max(left, -2), to = Math.min(right, this.width + 2);
    this.use(kind.colour, this.match && !found ? 0.2 : 1);
    // A hairline tells apart bars that follow one another without a break.
    pen.fillRect(from, y, to - from - (to - from > 4 * ratio ? ratio * 0.75 : 0), high);
    if (found) {
      this.use(FOUND, 1);
      pen.fillRect(from, y + high - 3 * ratio, Math.max(to - from, 1), 3 * ratio);
    }
    const inside = Math.max(from, 0), room = Math.floor((to - inside - 8 * ratio) / this.letter);
    if (room >= 3 && high >= 11 * ratio) {
      this.use(kind.ink, this.match && !found ? 0.5 : 1);
      pen.fillText(cut(bare(data.names[data.name[row]]), room), inside + 4 * ratio, y + high / 2 + ratio / 2);
    }
  }

  /** Set a colour only if it is another one: a frame has thousands of bars. */
  use(fill, alpha) {
    if (fill !== this.fill) this.pen.fillStyle = this.fill = fill;
    if (alpha !== this.alpha) this.pen.globalAlpha = this.alpha = alpha;
  }

  /** The gaps of a device on one of its lanes; `isNamed`: with their causes. */
  paintGaps(device, y, high, isNamed) {
    const {pen, ratio} = this;
    for (const gap of this.data.gaps) {
      if (gap.device !== device || gap.end < this.range[0] || gap.start > this.range[1]) continue;
      const left = Math.max(this.x(gap.start), -2), right = Math.min(this.x(gap.end), this.width + 2);
      const isChosen = this.chosen?.gap === gap;
      pen.globalAlpha = isChosen ? 0.3 : 0.14;
      pen.fillStyle = IDLE;
      pen.fillRect(left, y, Math.max(right - left, 1), high);
      pen.globalAlpha = isChosen ? 0.9 : 0.5;
      pen.fillStyle = this.hatch();
      pen.fillRect(left, y, Math.max(right - left, 1), high);
      const room = Math.floor((right - left - 12 * ratio) / this.letter);
      if (room >= 4 && isNamed) {
        pen.globalAlpha = 1;
        const text = cut(gap.host ? `${gap.cause}: ${gap.host}` : gap.cause, room);
        const wide = pen.measureText(text).width, x = (left + right - wide) / 2;
        pen.fillStyle = getComputedStyle(this.labels.firstChild).backgroundColor;
        pen.fillRect(x - 3 * ratio, y + high / 2 - 7 * ratio, wide + 6 * ratio, 14 * ratio);
        pen.fillStyle = this.ink;
        pen.fillText(text, x, y + high / 2 + ratio / 2);
      }
    }
  }

  hatch() {
    if (this.hatchRatio !== this.ratio) {
      const size = Math.round(6 * this.ratio);
      const tile = element("canvas", {width: size, height: size}), pen = tile.getContext("2d");
      pen.strokeStyle = IDLE;
      pen.lineWidth = this.ratio;
      for (const shift of [-size, 0, size]) {
        pen.moveTo(shift, size);
        pen.lineTo(shift + size, 0);
      }
      pen.stroke();
      this.hatched = this.pen.createPattern(tile, "repeat");
      this.hatchRatio = this.ratio;
    }
    return this.hatched;
  }

  box(row) {
    const {data} = this, place = this.places[data.lane[row]], level = data.level[row];
    if (level >= place.shown) return null;
    const left = this.x(data.start[row]), right = this.x(data.end[row]);
    return {left, right, y: this.top(place, level) * this.ratio, high: (place.height - 1) * this.ratio};
  }

  paintChosen() {
    const row = this.chosen?.row, at = row === undefined ? null : this.box(row), {pen, ratio} = this;
    if (!at) return;
    pen.strokeStyle = this.ink;
    pen.lineWidth = 2 * ratio;
    const left = Math.max(at.left, -4 * ratio), right = Math.min(at.right, this.width + 4 * ratio);
    pen.strokeRect(left - ratio, at.y - ratio / 2, Math.max(right - left, 1) + 2 * ratio, at.high + ratio);
  }

  /** From the launching call to its work. */
  paintArrow() {
    const row = this.chosen?.row, call = this.known.get(row)?.call;
    const from = call >= 0 ? this.box(call) : null, to = from ? this.box(row) : null, {pen, ratio} = this;
    if (!to) return;
    const y0 = from.y + from.high / 2, y1 = to.y + to.high / 2, bend = 30 * ratio;
    pen.globalAlpha = 0.8;
    pen.strokeStyle = pen.fillStyle = this.ink;
    pen.lineWidth = 1.25 * ratio;
    pen.beginPath();
    pen.moveTo(from.left, y0);
    pen.bezierCurveTo(from.left + bend, y0, to.left - bend, y1, to.left, y1);
    pen.stroke();
    pen.beginPath();
    pen.moveTo(to.left, y1);
    pen.lineTo(to.left - 6 * ratio, y1 - 3 * ratio);
    pen.lineTo(to.left - 6 * ratio, y1 + 3 * ratio);
    pen.fill();
    pen.globalAlpha = 1;
  }

  grid(isAxis) {
    const {pen, ratio, range} = this, lasts = range[1] - range[0];
    const most = Math.max(2, this.width / ratio / 110);
    const power = 10 ** Math.floor(Math.log10(lasts / most));
    const step = power * ([1, 2, 5].find((factor) => lasts / (factor * power) <= most) ?? 10);
    pen.fillStyle = this.ink;
    for (let at = Math.ceil(range[0] / step) * step; at <= range[1]; at += step) {
      const x = Math.round(this.x(at));
      pen.globalAlpha = isAxis ? 0.6 : 0.1;
      const [top, high] = isAxis ? [14 * ratio, 8 * ratio] : [0, this.canvas.height];
      pen.fillRect(x, top, Math.max(1, Math.round(ratio * 0.5)), high);
      if (!isAxis) continue;
      pen.globalAlpha = 1;
      const text = instant(at, step), wide = pen.measureText(text).width;
      const inside = this.width - wide - 4 * ratio;
      pen.fillText(text, Math.max(4 * ratio, Math.min(x - wide / 2, inside)), 8 * ratio);
    }
    pen.globalAlpha = 1;
  }

  // -- moving ---------------------------------------------------------------------------------

  show(from, to) {
    const whole = this.data.length, lasts = Math.max(SHORTEST_NS, Math.min(to - from, whole));
    const start = Math.max(0, Math.min((from + to) / 2 - lasts / 2, whole - lasts));
    this.range = [start, start + lasts];
    this.hideTip();
    this.draw();
  }

  fit() {
    this.show(0, this.data.length);
  }

  zoom(factor, at = (this.range[0] + this.range[1]) / 2) {
    const [from, to] = this.range;
    const lasts = Math.max(SHORTEST_NS, Math.min((to - from) * factor, this.data.length));
    const part = (at - from) / (to - from);
    const start = Math.max(0, Math.min(at - part * lasts, this.data.length - lasts));
    this.show(start, start + lasts);
  }

  pan(part) {
    const by = part * (this.range[1] - this.range[0]);
    this.show(this.range[0] + by, this.range[1] + by);
  }

  /** Bring a stretch into view: as it is if it can be seen, else so that it takes `part` of it. */
  reveal(start, end, part, code, level = 0) {
    const [from, to] = this.range, lasts = end - start;
    const isSeen = start >= from && end <= to && lasts * this.scale > 4 * this.ratio;
    if (!isSeen) {
      const around = Math.max(lasts, SHORTEST_NS) / part, middle = (start + end) / 2;
      this.show(middle - around / 2, middle + around / 2);
    }
    if (level >= this.places[code].shown) {
      this.opened.add(code);
      this.layOut();
    }
    const place = this.places[code], y = place.y + level * place.height;
    const room = this.scroll.clientHeight - AXIS - place.height;
    if (y < this.scroll.scrollTop || y > this.scroll.scrollTop + room) this.scroll.scrollTop = y - room / 2;
    this.draw();
  }

  // -- choosing -------------------------------------------------------------------------------

  /** What is at a point of the canvas, in CSS pixels. */
  at(x, y) {
    const inLanes = y - AXIS + this.scroll.scrollTop;
    const code = this.places.findIndex((p) => inLanes >= p.y && inLanes < p.y + p.shown * p.height);
    if (y < AXIS || code < 0) return {};
    const place = this.places[code], ns = this.range[0] + (x * this.ratio) / this.scale;
    const track = this.data.tracks[code][Math.floor((inLanes - place.y) / place.height)];
    const near = (NEAR * this.ratio) / this.scale;
    const exact = nearest(track, ns, 0);
    if (exact >= 0) return {row: exact};
    const {device, marks} = this.data.lanes[code];
    const isIn = (gap) => gap.device === device && gap.start <= ns && ns <= gap.end;
    const gap = device && !marks && this.data.gaps.find(isIn);
    if (gap) return {gap};
    const row = nearest(track, ns, near);
    if (row >= 0) return {row};
    return device && !marks ? {idle: this.idle(device, ns)} : {};
  }

  /** A short stretch in which no lane of a device works, which the report has not judged. */
  idle(device, ns) {
    let start = -Infinity, end = Infinity;
    this.data.lanes.forEach((lane, code) => {
      if (lane.device !== device || lane.marks) return;
      for (const track of this.data.tracks[code]) {
        const next = search(track.start, ns, 0, track.size);
        if (next > 0) start = Math.max(start, track.end[next - 1]);
        if (next < track.size) end = Math.min(end, track.start[next]);
      }
    });
    return start < ns && isFinite(start) && isFinite(end) ? {device, start, end} : undefined;
  }

  choose(what) {
    this.chosen = what.row !== undefined || what.gap || what.idle ? what : null;
    if (what.row !== undefined) this.ask(what.row);
    const place = this.data.gaps.indexOf(what.gap);
    this.gapCount.textContent = place < 0 ? "" : `${place + 1} of ${this.data.gaps.length}`;
    this.explain();
    this.draw();
  }

  stepGap(by) {
    const {gaps} = this.data;
    if (!gaps.length) return;
    const now = gaps.indexOf(this.chosen?.gap);
    const gap = gaps[now < 0 ? (by > 0 ? 0 : gaps.length - 1) : (now + by + gaps.length) % gaps.length];
    const code = this.data.lanes.findIndex((lane) => lane.device === gap.device);
    this.choose({gap});
    this.reveal(gap.start, gap.end, 0.4, code);
  }

  stepRow(by) {
    const row = this.chosen?.row;
    if (row === undefined) return;
    const track = this.data.tracks[this.data.lane[row]][this.data.level[row]];
    const next = search(track.start, this.data.start[row], 0, track.size) + by;
    if (next >= 0 && next < track.size) this.chooseRow(track.row[next]);
  }

  chooseRow(row) {
    this.choose({row});
    this.reveal(this.data.start[row], this.data.end[row], 0.1, this.data.lane[row], this.data.level[row]);
  }

  find(text) {
    const {data} = this, wanted = text.trim().toLowerCase();
    this.match = wanted ? data.names.map((name) => name.toLowerCase().includes(wanted)) : null;
    this.matches = [];
    if (this.match) {
      const rows = [];
      data.name.forEach((name, row) => {
        if (this.match[name] && data.level[row] < MOST_LEVELS) rows.push(row);
      });
      this.matches = rows;
    }
    for (const track of data.tracks.flat()) {
      track.hits = this.match && new Uint32Array(track.size + 1);
      for (let at = 0; this.match && at < track.size; at++) {
        track.hits[at + 1] = track.hits[at] + (this.match[data.name[track.row[at]]] ? 1 : 0);
      }
    }
    this.tellCount();
    this.draw();
  }

  stepMatch(by) {
    const {matches} = this;
    if (!matches.length) return;
    const row = this.chosen?.row ?? -1, place = matches.indexOf(row);
    let next = place + by;
    if (place < 0) {
      const first = matches.findIndex((one) => this.data.start[one] >= this.range[0]);
      next = by > 0 ? Math.max(first, 0) : (first < 0 ? matches.length : first) - 1;
    }
    this.chooseRow(matches[(next + matches.length) % matches.length]);
    this.tellCount();
  }

  tellCount() {
    const {match, matches} = this, all = matches.length.toLocaleString("en");
    const place = matches.indexOf(this.chosen?.row) + 1;
    const told = place ? `${place.toLocaleString("en")} of ${all}` : `${all} found`;
    this.count.textContent = !match ? "" : matches.length ? told : "none";
  }

  // -- telling --------------------------------------------------------------------------------

  /** Ask the kernel what only it has: bytes, the detail, the launching call. */
  ask(row) {
    if (this.known.has(row)) return;
    this.known.set(row, null);
    this.model.send({row});
  }

  learn(message) {
    if (message?.row === undefined) return;
    this.known.set(message.row, message);
    if (this.chosen?.row === message.row) {
      this.explain();
      this.draw();
    }
    if (this.tipped?.row === message.row && !this.tip.hidden) this.fillTip(this.tipped);
  }

  facts(row) {
    const {data} = this, more = this.known.get(row), lasts = data.end[row] - data.start[row];
    const lane = data.lanes[data.lane[row]];
    const facts = [
      ["lasts", lasting(lasts)],
      ["kind", data.kinds[data.kind[row]].word],
      ["lane", lane.device ? `${lane.device}, ${lane.name}` : lane.name],
    ];
    if (Number.isInteger(more?.nbytes)) {
      const rate = lasts ? `, ${digits(more.nbytes / lasts)} GB/s` : "";
      facts.push(["bytes", capacity(more.nbytes) + rate]);
    }
    if (more?.detail) facts.push(["detail", more.detail]);
    return facts;
  }

  explain() {
    const parts = [], {data} = this, {row, gap, idle} = this.chosen ?? {};
    const list = (facts) =>
      element("dl", {}, ...facts.map(([name, text]) =>
        element("div", {}, element("dt", {textContent: name}), " ", element("dd", {textContent: text}))));
    const title = (textContent) => element("div", {className: "title", textContent});
    if (row !== undefined) {
      const facts = this.facts(row), call = this.known.get(row)?.call ?? -1;
      facts.splice(1, 0, ["begins", instant(data.start[row], (data.end[row] - data.start[row]) / 10, 2)]);
      if (call >= 0) {
        const late = Math.max(0, data.start[row] - data.start[call]);
        facts.push(["launched by", `${data.names[data.name[call]]}, ${lasting(late)} before it began`]);
      }
      parts.push(title(data.names[data.name[row]]), list([...facts, ["all of this name", this.total(row)]]));
    } else if (gap) {
      parts.push(
        title(`${gap.device} was idle for ${lasting(gap.end - gap.start)}: ${gap.cause}`),
        element("div", {textContent: gap.meaning}),
        list([
          ["the host was in", gap.host || "not shown by the trace"],
          ["between", `${cut(bare(gap.before), 60)} → ${cut(bare(gap.after), 60)}`],
          ...(gap.step === null ? [] : [["step", `${gap.step}`]]),
          ["begins", instant(gap.start, (gap.end - gap.start) / 10, 2)],
          ["of its idle time", percent(gap.share)],
        ]),
      );
    } else if (idle) {
      parts.push(
        title(`${idle.device} was idle for ${lasting(idle.end - idle.start)}`),
        element("div", {textContent: "the report judges the longest gaps alone; this is not among them"}),
      );
    } else {
      parts.push(element("div", {className: "hint", textContent: HINT}));
    }
    this.panel.replaceChildren(...parts);
  }

  total(row) {
    const {data} = this, name = data.name[row], lane = data.lane[row];
    let count = 0, sum = 0;
    for (const track of data.tracks[lane]) {
      for (let at = 0; at < track.size; at++) {
        if (data.name[track.row[at]] === name) {
          count++;
          sum += track.end[at] - track.start[at];
        }
      }
    }
    return `${count.toLocaleString("en")} on this lane, ${lasting(sum)} in all, ${lasting(sum / count)} each`;
  }

  fillTip({row, gap, idle}) {
    const {data} = this;
    const lines = gap
      ? [`idle for ${lasting(gap.end - gap.start)}: ${gap.cause}`,
          gap.host && `the host was in ${cut(gap.host, 120)}`]
      : idle
        ? [`idle for ${lasting(idle.end - idle.start)}`]
        : [cut(data.names[data.name[row]], 200), ...this.facts(row).map(([name, text]) =>
            ["lasts", "lane", "kind"].includes(name) ? cut(text, 100) : `${name} ${cut(text, 200)}`)];
    this.tip.replaceChildren(...lines.filter(Boolean).map((textContent, place) =>
      element("div", {textContent, style: place ? "" : "font-weight:600"})));
  }

  showTip(what, x, y) {
    const isSame = this.tipped && this.tipped.row === what.row && this.tipped.gap === what.gap;
    this.tipped = what;
    const isSomething = what.row !== undefined || what.gap || what.idle;
    this.canvas.classList.toggle("over", Boolean(isSomething));
    if (!isSomething) return this.hideTip();
    if (what.row !== undefined && !isSame) {
      clearTimeout(this.asking);
      this.asking = setTimeout(() => this.ask(what.row), 80);
    }
    if (!isSame || what.idle) this.fillTip(what);
    this.tip.hidden = false;
    const inside = this.root.getBoundingClientRect(), canvas = this.canvas.getBoundingClientRect();
    const left = canvas.left - inside.left + x, top = canvas.top - inside.top + y;
    const {offsetWidth, offsetHeight} = this.tip;
    const isLow = top + 18 + offsetHeight > inside.height;
    this.tip.style.left = `${Math.max(0, Math.min(left + 12, inside.width - offsetWidth))}px`;
    this.tip.style.top = `${isLow ? top - offsetHeight - 10 : top + 18}px`;
  }

  hideTip() {
    clearTimeout(this.asking);
    this.tip.hidden = true;
    this.tipped = null;
  }

  // -- events ---------------------------------------------------------------------------------

  listen() {
    const {canvas} = this;
    this.ending = new AbortController();
    const {signal} = this.ending;
    const on = (target, type, act, options = {}) => target.addEventListener(type, act, {signal, ...options});
    on(canvas, "wheel", (event) => this.onWheel(event), {passive: false});
    on(canvas, "pointerdown", (event) => this.onDown(event));
    on(canvas, "pointermove", (event) => this.onMove(event));
    on(canvas, "pointerup", (event) => this.onUp(event));
    on(canvas, "pointercancel", (event) => this.pointers.delete(event.pointerId));
    on(canvas, "pointerleave", () => this.hideTip());
    on(canvas, "dblclick", (event) => this.zoom(1 / 3, this.when(event)));
    on(canvas, "keydown", (event) => this.onKey(event));
    on(this.scroll, "scroll", () => {
      this.hideTip();
      this.draw();
    });
    on(this.input, "input", () => this.find(this.input.value));
    on(this.input, "keydown", (event) => {
      if (event.key === "Enter") {
        event.preventDefault();
        this.stepMatch(event.shiftKey ? -1 : 1);
      }
    });
    on(matchMedia("(prefers-color-scheme: dark)"), "change", () => this.draw());
    const onMessage = (message) => this.learn(message);
    this.model.on("msg:custom", onMessage);
    signal.addEventListener("abort", () => this.model.off("msg:custom", onMessage));
    const sizes = new ResizeObserver(() => this.draw());
    sizes.observe(canvas.parentElement);
    // A change of theme changes the colours, not the size.
    const themes = new MutationObserver(() => this.draw());
    themes.observe(document.body, {attributes: true});
    signal.addEventListener("abort", () => {
      sizes.disconnect();
      themes.disconnect();
      cancelAnimationFrame(this.frame);
      clearTimeout(this.asking);
    });
  }

  when(event) {
    return this.range[0] + (event.offsetX * this.ratio) / this.scale;
  }

  onWheel(event) {
    // A page that is scrolled must not stop here; a pinch comes as a wheel with Ctrl.
    const isMine = this.root.contains(document.activeElement) || event.ctrlKey || event.metaKey;
    if (!isMine) return;
    event.preventDefault();
    const unit = event.deltaMode === 1 ? 16 : event.deltaMode === 2 ? 300 : 1;
    const [across, along] = [event.deltaX * unit, event.deltaY * unit];
    if (event.shiftKey || Math.abs(across) > Math.abs(along)) {
      this.pan((across || along) / (this.width / this.ratio));
    } else {
      const speed = event.ctrlKey ? 0.01 : 0.0022;
      this.zoom(Math.exp(Math.max(-1, Math.min(1, along * speed))), this.when(event));
    }
  }

  onDown(event) {
    if (event.button) return;
    this.hideTip();
    this.canvas.focus({preventScroll: true});
    this.canvas.setPointerCapture(event.pointerId);
    this.pointers.set(event.pointerId, {x: event.offsetX, y: event.offsetY});
    this.moved = this.pointers.size > 1 ? Infinity : 0;
  }

  onMove(event) {
    const before = this.pointers.get(event.pointerId);
    const now = {x: event.offsetX, y: event.offsetY};
    if (!before) {
      if (event.pointerType !== "touch") this.showTip(this.at(now.x, now.y), now.x, now.y);
      return;
    }
    this.moved += Math.abs(now.x - before.x) + Math.abs(now.y - before.y);
    if (this.moved < 4) return;
    this.hideTip();
    this.canvas.classList.add("dragging");
    const other = [...this.pointers].find(([id]) => id !== event.pointerId)?.[1];
    if (other) {
      const apart = (one) => Math.max(8, Math.abs(one.x - other.x));
      const middle = this.range[0] + (((other.x + now.x) / 2) * this.ratio) / this.scale;
      this.zoom(apart(before) / apart(now), middle);
    } else {
      this.pan((before.x - now.x) / (this.width / this.ratio));
      if (event.pointerType !== "touch") this.scroll.scrollTop += before.y - now.y;
    }
    this.pointers.set(event.pointerId, now);
  }

  onUp(event) {
    if (!this.pointers.delete(event.pointerId)) return;
    this.canvas.classList.remove("dragging");
    if (this.moved < 4) this.choose(this.at(event.offsetX, event.offsetY));
  }

  onKey(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const acts = {
      "+": () => this.zoom(1 / 1.5), "=": () => this.zoom(1 / 1.5), w: () => this.zoom(1 / 1.5),
      "-": () => this.zoom(1.5), s: () => this.zoom(1.5),
      a: () => this.pan(-0.15), arrowleft: () => this.pan(-0.15),
      d: () => this.pan(0.15), arrowright: () => this.pan(0.15),
      arrowup: () => (this.scroll.scrollTop -= 40), arrowdown: () => (this.scroll.scrollTop += 40),
      0: () => this.fit(), home: () => this.fit(),
      g: () => this.stepGap(event.shiftKey ? -1 : 1),
      ",": () => this.stepRow(-1), ".": () => this.stepRow(1),
      escape: () => this.choose({}),
      "/": () => this.input.focus(),
    };
    const act = acts[event.key.toLowerCase()];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  }
}

/** The row of a track at a time, or the one that is nearest to it; -1 if none is so near. */
function nearest(track, ns, near) {
  if (!track) return -1;
  const next = search(track.start, ns, 0, track.size);
  // `next` begins at or behind the time: at it counts as inside.
  let best = -1, least = near;
  for (const at of [next, next - 1]) {
    if (at < 0 || at >= track.size) continue;
    const away = Math.max(track.start[at] - ns, ns - track.end[at], 0);
    if (away <= least) [best, least] = [track.row[at], away];
  }
  return best;
}

export default {
  render({model, el}) {
    const root = element("div");
    el.append(root);
    const timeline = new Timeline(model, root);
    return () => timeline.ending.abort();
  },
};
