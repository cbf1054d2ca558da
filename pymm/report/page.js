"use strict";
// A click on the head of a column sorts its table; a filter shows the rows that contain its words;
// a button switches between light and dark. Without scripts the page is readable as it is.
(() => {
  const fieldOf = (row, place) => {
    const cell = row.cells[place];
    const text = cell.dataset.v ?? cell.textContent.trim();
    const number = text === "" ? NaN : Number(text);
    return { text, number };
  };
  const compare = (a, b) =>
    Number.isNaN(a.number) || Number.isNaN(b.number)
      ? a.text.localeCompare(b.text, "en", { numeric: true })
      : a.number - b.number;

  for (const table of document.querySelectorAll("table.sorts")) {
    const heads = [...table.tHead.rows[0].cells];
    heads.forEach((head, place) => {
      head.firstElementChild.addEventListener("click", () => {
        const up = head.getAttribute("aria-sort") !== "ascending";
        const keyed = [...table.tBodies[0].rows].map((row) => [fieldOf(row, place), row]);
        keyed.sort(([a], [b]) => {
          if (a.text === "" || b.text === "") return (a.text === "") - (b.text === ""); // last
          return up ? compare(a, b) : compare(b, a);
        });
        heads.forEach((other) => other.removeAttribute("aria-sort"));
        head.setAttribute("aria-sort", up ? "ascending" : "descending");
        table.tBodies[0].append(...keyed.map(([, row]) => row));
      });
    });
  }

  for (const field of document.querySelectorAll("input.filter")) {
    const rows = [...document.getElementById(field.dataset.table).tBodies[0].rows];
    field.hidden = false;
    field.addEventListener("input", () => {
      const words = field.value.toLowerCase().split(/\s+/);
      for (const row of rows) {
        const text = row.textContent.toLowerCase();
        row.hidden = !words.every((word) => text.includes(word));
      }
    });
  }

  // A table that is wider than the page says so, also when it is unfolded later.
  const wide = new ResizeObserver((entries) => {
    for (const { target } of entries) {
      const hint = target.previousElementSibling;
      if (hint?.classList.contains("hint")) hint.hidden = target.scrollWidth <= target.clientWidth;
    }
  });
  for (const table of document.querySelectorAll(".wide")) wide.observe(table);

  // A link to a chapter unfolds it; on paper all chapters are unfolded, long tables are not.
  const unfold = () => {
    const target = location.hash && document.getElementById(location.hash.slice(1));
    if (!target) return;
    for (const fold of [...target.querySelectorAll("details.chapter"), target.closest("details")])
      if (fold) fold.open = true;
    target.scrollIntoView();
  };
  window.addEventListener("hashchange", unfold);
  unfold();
  window.addEventListener("beforeprint", () => {
    for (const fold of document.querySelectorAll("details.chapter")) fold.open = true;
  });

  const root = document.documentElement;
  const button = document.getElementById("theme");
  button.hidden = false;
  button.addEventListener("click", () => {
    const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
    const now = root.dataset.theme ?? system;
    root.dataset.theme = now === "dark" ? "light" : "dark";
  });
})();
