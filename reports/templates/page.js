// The page is whole without this: it copies commands, opens what a link points into, and walks the matrix.
(() => {
  for (const code of document.querySelectorAll("code.copy")) {
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

  const reveal = () => {
    const target = document.getElementById(decodeURIComponent(location.hash.slice(1)));
    if (!target) return;
    for (let node = target; node; node = node.parentElement) if (node.tagName === "DETAILS") node.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  if (location.hash) reveal();

  let closed = [];
  addEventListener("beforeprint", () => {
    closed = [...document.querySelectorAll("details:not([open])")];
    for (const node of closed) node.open = true;
  });
  addEventListener("afterprint", () => { for (const node of closed) node.open = false; });

  // One tab stop for the whole matrix; the arrow keys do the rest.
  const rows = [...document.querySelectorAll(".matrix tbody tr")].map(row => [...row.cells]);
  const links = [...document.querySelectorAll(".matrix tbody td a")];
  for (const link of links) {
    link.tabIndex = -1;
    link.title = link.getAttribute("aria-label");
  }
  if (links.length) links[0].tabIndex = 0;
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  document.querySelector(".matrix")?.addEventListener("keydown", event => {
    const step = steps[event.key], cell = event.target.closest("td");
    if (!step || !cell) return;
    event.preventDefault();
    let row = rows.findIndex(cells => cells.includes(cell)), column = rows[row].indexOf(cell);
    for (;;) {
      row += step[0];
      column += step[1];
      const next = rows[row]?.[column];
      if (!next) return;
      const link = next.querySelector("a");
      if (link && next.tagName === "TD") {
        for (const other of links) other.tabIndex = -1;
        link.tabIndex = 0;
        link.focus();
        link.scrollIntoView({ block: "nearest", inline: "nearest" });
        return;
      }
    }
  });
})();
