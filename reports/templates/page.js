// What was found is there without this. It opens what is packed, filters the matrix and walks it, copies commands.
(() => {
  const all = (what, within = document) => [...within.querySelectorAll(what)];

  const withButtons = within => {
    for (const code of all("code.copy", within)) {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = "Copy";
      button.setAttribute("aria-label", "Copy the command " + code.textContent);
      button.onclick = async () => {
        try {
          await navigator.clipboard.writeText(code.textContent);
          button.textContent = "Copied";
        } catch {
          // A page opened from disk may not be allowed to: the selected text is one key away from copied.
          getSelection().selectAllChildren(code);
          button.textContent = "Selected";
        }
        setTimeout(() => { button.textContent = "Copy"; }, 1500);
      };
      code.after(button);
    }
  };
  withButtons(document);

  // -- what is packed: scenario -> its evidence, deflated, in base64

  let packets = null;
  const unpack = async scenario => {
    const note = scenario.querySelector(":scope > .packed");
    if (!note || note.dataset.begun) return;
    note.dataset.begun = "yes";
    try {
      packets ??= JSON.parse(document.getElementById("evidence").textContent);
      const bytes = Uint8Array.from(atob(packets[scenario.id]), letter => letter.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate-raw"));
      note.outerHTML = await new Response(stream).text();
      for (const line of all(".promise[data-of]", scenario))  // each stands in the page once
        line.textContent = document.querySelector(`#${line.dataset.of} .sentence`).textContent;
      withButtons(scenario);
    } catch (error) {
      note.textContent = "This browser cannot unpack the evidence that is in this page (it needs DecompressionStream: "
        + "Chrome 103, Firefox 113, Safari 16.4 or newer). What each guarantee came to is in the matrix; the records "
        + "themselves lie in the folders of the runs. " + error;
    }
  };
  const unpacked = new WeakMap();
  const whole = scenario => {
    if (!unpacked.has(scenario)) unpacked.set(scenario, unpack(scenario));
    return unpacked.get(scenario);
  };
  const scenarios = all("details.scenario");
  for (const scenario of scenarios) {
    scenario.addEventListener("toggle", () => { if (scenario.open) whole(scenario); });
    if (scenario.open) whole(scenario);
  }
  const opener = document.querySelector(".unpack");
  if (opener) {
    opener.hidden = false;
    opener.querySelector("button").onclick = async () => {
      for (const scenario of scenarios) {
        await whole(scenario);
        for (const node of [scenario, ...all("details", scenario)]) node.open = true;
      }
    };
  }

  // -- the matrix: what its cells lead to, and which of its rows are shown

  const matrix = document.querySelector(".matrix"), form = document.querySelector(".filter");
  const columns = all("th[data-column]").map(head => [head.dataset.column, head.textContent]);
  const rows = all(".matrix tbody tr");
  for (const row of rows) {
    const head = row.cells[0].querySelector("a"), number = head.hash.slice(2);
    const name = head.title.split(": ")[0];
    for (const [index, [column, guarantee]] of columns.entries()) {
      const link = row.cells[index + 1].querySelector("a");
      if (!link) continue;
      link.setAttribute("href", `#c${number}-${column}`);
      link.title = `${name}, ${guarantee}: ${link.getAttribute("aria-label")}`;
      link.setAttribute("aria-label", link.title);
      link.tabIndex = -1;
    }
  }
  for (const link of all("a[data-to]")) link.setAttribute("href", "#" + link.dataset.to);

  // A filter stands behind the name of a place: #matrix?show=bad&fate=kill
  const place = () => decodeURIComponent(location.hash.slice(1).split("?")[0]);
  const query = () => location.hash.split("?")[1] || "";
  const asked = () => new URLSearchParams([...new FormData(form)].filter(([, value]) => value)).toString();
  const has = (words, wanted) => !wanted || words.split(" ").includes(wanted);
  const filter = () => {
    let shown = 0;
    for (const row of rows) {
      row.hidden = !(has(row.dataset.states, form.show.value) && has(row.dataset.processes, form.process.value)
        && has(row.dataset.fates, form.fate.value));
      shown += !row.hidden;
    }
    const of = rows.length === 1 ? "row" : "rows";
    form.querySelector("output").textContent = `${shown.toLocaleString("en")} of ${rows.length.toLocaleString("en")} ${of} shown`;
    stop(all(".matrix tbody tr:not([hidden]) td a")[0]);
  };
  const keep = name => {
    const wanted = asked();
    history.replaceState(history.state, "", "#" + name + (wanted ? "?" + wanted : ""));
  };
  const restore = () => {
    const wanted = new URLSearchParams(query());
    for (const box of all("select", form)) {
      box.value = wanted.get(box.name) || "";
      if (box.selectedIndex < 0) box.value = "";
    }
    filter();
  };

  // One tab stop for the whole matrix; the arrow keys do the rest.
  let current = null;
  const stop = link => {
    if (current) current.tabIndex = -1;
    current = link;
    if (link) link.tabIndex = 0;
  };
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  matrix?.addEventListener("keydown", event => {
    const step = steps[event.key], cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    let row = rows.indexOf(cell.parentElement), column = cell.cellIndex;
    for (;;) {
      row += step[0];
      column += step[1];
      const next = rows[row]?.cells[column];
      if (!next) return;
      const link = next.querySelector("td > a");
      if (link && !rows[row].hidden) {
        stop(link);
        link.focus();
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
        return;
      }
    }
  });

  const sideways = () => {
    const grid = document.querySelector(".grid"), hint = document.querySelector(".sideways");
    const first = grid.querySelector(".corner")?.getBoundingClientRect().right, right = grid.getBoundingClientRect().right;
    const seen = all("th[data-column]").filter(head => {
      const box = head.getBoundingClientRect();
      return box.left >= first - 1 && box.right <= right + 1;
    }).length;
    hint.hidden = grid.scrollWidth <= grid.clientWidth;
    hint.textContent = `${seen} of ${columns.length} guarantees are in view: the matrix scrolls sideways, its first column stays.`;
  };

  // -- where a link leads

  const reveal = async () => {
    const name = place(), number = name.match(/^[crs](\d+)/)?.[1];
    const scenario = number && document.getElementById("s" + number);
    if (scenario) await whole(scenario);
    if (place() !== name) return;  // the reader went on meanwhile
    const target = document.getElementById(name) || scenario;
    for (const node of all(".aim")) node.classList.remove("aim");
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.classList.add("aim");
    target.scrollIntoView();
  };
  addEventListener("hashchange", () => {
    if (query()) restore();
    else if (asked()) keep(place());  // a link names a place alone
    reveal();
  });
  restore();
  if (location.hash) reveal();
  form.hidden = false;
  form.addEventListener("change", () => { filter(); keep("matrix"); sideways(); });
  form.addEventListener("reset", () => setTimeout(() => { filter(); keep("matrix"); sideways(); }));
  addEventListener("resize", sideways);
  document.querySelector(".grid").addEventListener("scroll", sideways);
  sideways();

  // -- on paper everything that was unpacked is open

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = all("details:not([open])").filter(node => !node.querySelector(":scope > .packed"));
    for (const node of closed) node.open = true;
  });
  addEventListener("afterprint", () => { for (const node of closed) node.open = false; });
})();
