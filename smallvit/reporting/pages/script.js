"use strict";
// Tables sort by the column whose heading is pressed; without scripts the page is complete as well.
for (const table of document.querySelectorAll("table.sortable")) {
  const body = table.tBodies[0];
  const headings = [...table.tHead.rows[0].cells];
  const collator = new Intl.Collator(undefined, { numeric: true });
  headings.forEach((heading, column) => {
    if (!heading.textContent.trim()) return; // nothing to press
    const button = document.createElement("button");
    button.type = "button";
    button.append(...heading.childNodes);
    heading.append(button);
    button.addEventListener("click", () => {
      const up = heading.getAttribute("aria-sort") === "descending" ||
        (column === 0 && !heading.hasAttribute("aria-sort"));
      for (const other of headings) other.removeAttribute("aria-sort");
      heading.setAttribute("aria-sort", up ? "ascending" : "descending");
      const compare = (one, two) => {
        const [a, b] = [one, two].map((row) => row.cells[column]);
        if ("sort" in a.dataset) return Number(a.dataset.sort) - Number(b.dataset.sort);
        return collator.compare(a.textContent.trim(), b.textContent.trim());
      };
      body.append(...[...body.rows].sort((one, two) => (up ? 1 : -1) * compare(one, two)));
    });
  });
}
// On paper everything is unfolded.
addEventListener("beforeprint", () => {
  for (const part of document.querySelectorAll("details")) part.open = true;
});
