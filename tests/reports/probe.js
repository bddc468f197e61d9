// What a test asks of the page in a real browser. It runs in a document beside the page, which is in a frame.
const frame = document.querySelector("iframe");
const wait = milliseconds => new Promise(done => setTimeout(done, milliseconds));
const all = (what, within = frame.contentDocument) => [...within.querySelectorAll(what)];
const one = what => frame.contentDocument.querySelector(what);

const until = async (what, holds) => {
  for (let turn = 0; turn < 6000; turn++) {
    if (holds()) return;
    await wait(10);
  }
  throw new Error("it never came to be that " + what);
};

// A page hears that it was resized or scrolled with the next picture of it, which a busy machine draws late.
const drawn = async () => {
  for (let picture = 0; picture < 2; picture++) await new Promise(frame.contentWindow.requestAnimationFrame);
};

const resized = async width => {
  frame.style.width = width + "px";
  await until("the page has its width", () => frame.contentWindow.innerWidth === width);
  await drawn();
};

const goes = async hash => {
  const heard = new Promise(done => frame.contentWindow.addEventListener("hashchange", done, { once: true }));
  frame.contentWindow.location.hash = hash;
  await heard;
  await drawn();
};

const openAll = async () => {
  one(".unpack button").click();
  await until("all is unpacked", () => !one(".packed"));
  await drawn();
  for (const details of all("details")) details.open = true;
};

const styleOf = (node, pseudo) => frame.contentWindow.getComputedStyle(node, pseudo);

// -- colours: red, green, blue, alpha

const parsed = colour => {
  const parts = colour.match(/^rgba?\(([\d.]+), ([\d.]+), ([\d.]+)(?:, ([\d.]+))?\)$/);
  return parts ? [+parts[1], +parts[2], +parts[3], parts[4] === undefined ? 1 : +parts[4]] : null;
};
const over = (top, below) => [0, 1, 2].map(part => top[part] * top[3] + below[part] * (1 - top[3])).concat(1);
const luminance = colour => {
  const [red, green, blue] = colour.map(part => part / 255).map(
    part => part <= 0.03928 ? part / 12.92 : ((part + 0.055) / 1.055) ** 2.4);
  return 0.2126 * red + 0.7152 * green + 0.0722 * blue;
};
const contrast = (one, other) => {
  const [light, dark] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (light + 0.05) / (dark + 0.05);
};

const ancestors = node => {
  const found = [];
  for (; node; node = node.parentElement) found.push(node);
  return found;
};

const boxed = (box, x, y) => box.left <= x && x <= box.right && box.top <= y && y <= box.bottom;

// What a text of a drawing stands on: all filled shapes below its middle, in the order in which they are drawn.
const ground = (text, below) => {
  const style = styleOf(text), halo = parsed(style.stroke);
  if (halo && style.paintOrder.startsWith("stroke")) return over(halo, below);
  const box = text.getBoundingClientRect(), x = (box.left + box.right) / 2, y = (box.top + box.bottom) / 2;
  for (const shape of text.ownerSVGElement.querySelectorAll("rect, path, circle")) {
    const fill = parsed(styleOf(shape).fill);
    if (!fill || !boxed(shape.getBoundingClientRect(), x, y)) continue;
    if (!(text.compareDocumentPosition(shape) & Node.DOCUMENT_POSITION_PRECEDING)) continue;
    below = over([...fill.slice(0, 3), fill[3] * styleOf(shape).fillOpacity * styleOf(shape).opacity], below);
  }
  return below;
};

const contrastOf = (node, pseudo) => {
  const chain = ancestors(node);
  let below = [255, 255, 255, 1];
  for (const parent of [...chain].reverse()) {
    const colour = parsed(styleOf(parent).backgroundColor);
    if (colour) below = over(colour, below);
  }
  if (pseudo) below = over(parsed(styleOf(node, pseudo).backgroundColor) || [0, 0, 0, 0], below);
  const drawn = Boolean(node.ownerSVGElement);
  if (drawn) below = ground(node, below);
  const ink = parsed(drawn ? styleOf(node).fill : styleOf(node, pseudo).color);
  const opacity = chain.reduce((product, parent) => product * styleOf(parent).opacity, 1);
  return contrast(over([...ink.slice(0, 3), ink[3] * opacity], below), below);
};

// Every text that can be seen, and the contrast it has to what is behind it; the worst first.
const contrasts = () => {
  const page = frame.contentDocument, found = [];
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  const seen = new Map();
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || seen.has(node)) continue;
    if (node.closest("script, style, title, option, [hidden]") || !node.getClientRects().length) continue;
    seen.set(node, true);
    found.push([contrastOf(node), node.closest("svg")?.getAttribute("class") || node.className || node.tagName,
      walker.currentNode.data.trim().slice(0, 30)]);
  }
  for (const node of all("select")) if (node.getClientRects().length) found.push([contrastOf(node), "select", ""]);
  for (const node of all("*")) {
    for (const pseudo of ["::before", "::after"]) {
      const content = styleOf(node, pseudo).content;
      if (/^"[^"]+"$/.test(content)) found.push([contrastOf(node, pseudo), node.className + pseudo, content]);
    }
  }
  return found.sort((a, b) => a[0] - b[0]).map(([value, ...rest]) => [Math.round(value * 100) / 100, ...rest]);
};

// -- places

// Elements that reach beyond the window, but for those that scroll by themselves.
const tooWide = () => {
  const root = frame.contentDocument.documentElement;
  const inside = node => node.closest(".scroll, nav, .skip, .defs");
  return all("body *").filter(node => !inside(node) && node.getBoundingClientRect().right > root.clientWidth + 1)
    .map(node => String(node.className.baseVal ?? node.className) || node.tagName);
};

// Pairs of words of one drawing that lie on each other. A line of text is less high than its box.
const collisions = drawing => {
  const boxes = [...drawing.querySelectorAll("text")].map(text => [text.textContent, text.getBoundingClientRect()])
    .sort((a, b) => a[1].top - b[1].top);
  const found = [];
  for (const [place, [words, box]] of boxes.entries()) {
    for (const [others, other] of boxes.slice(place + 1)) {
      if (other.top > box.bottom - 4) break;
      if (other.left < box.right - 1 && box.left < other.right - 1) found.push([words, others]);
    }
  }
  return found;
};

const columnsInView = () => {
  const grid = one(".grid").getBoundingClientRect(), first = one(".corner").getBoundingClientRect().right;
  return all("th[data-column]").filter(head => {
    const box = head.getBoundingClientRect();
    return box.left >= first - 1 && box.right <= grid.right + 1;
  }).length;
};

const rowsShown = () => all(".matrix tbody tr").filter(row => row.getClientRects().length).length;
const height = what => Math.round(one(what)?.getBoundingClientRect().height ?? 0);
