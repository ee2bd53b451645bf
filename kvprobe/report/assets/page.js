/* The page's only script: sort a table, save it as CSV, switch light and dark. Nothing needs it to be read.
   It is allowed by its hash and reads texts only as text. A CSV cell that a spreadsheet would take for a
   formula gets a ' in front (the rule of sanitize.csv_cell); the report's own numbers stay numbers. */
(() => {
const say = document.body.dataset, root = document.documentElement;
const guard = t => /^\s*[=+\-@\t\r\uFF1D\uFF0B\uFF0D\uFF20]/.test(t) ? "'" + t : t;
const value = c => c.dataset.v !== undefined ? c.dataset.v : guard(c.textContent.trim());
const quote = t => /[",\n]/.test(t) ? '"' + t.replace(/"/g, '""') + '"' : t;
const button = (words, act) => { const b = document.createElement("button"); b.type = "button";
  b.textContent = words; b.addEventListener("click", act); return b; };
const compare = (a, b) => { const x = parseFloat(a.dataset.v), y = parseFloat(b.dataset.v);
  if (!isNaN(x) && !isNaN(y)) return x - y;
  if (isNaN(x) !== isNaN(y)) return isNaN(x) ? 1 : -1;
  return a.textContent.localeCompare(b.textContent, root.lang, { numeric: true }); };
const sort = (table, i) => { const heads = [...table.tHead.rows[0].cells], th = heads[i];
  const up = th.getAttribute("aria-sort") !== "ascending";
  heads.forEach(h => h.removeAttribute("aria-sort"));
  th.setAttribute("aria-sort", up ? "ascending" : "descending");
  const rows = [...table.tBodies[0].rows];
  rows.sort((a, b) => (up ? 1 : -1) * compare(a.cells[i], b.cells[i]));
  table.tBodies[0].append(...rows); };
const save = table => { const lines = [...table.rows].map(r => [...r.cells].map(c => quote(value(c))).join(","));
  const at = URL.createObjectURL(new Blob(["\ufeff" + lines.join("\r\n") + "\r\n"], { type: "text/csv" }));
  const a = document.createElement("a"); a.href = at; a.download = table.dataset.name + ".csv"; a.click();
  setTimeout(() => URL.revokeObjectURL(at), 1000); };
document.querySelectorAll("table[data-name]").forEach(table => {
  [...table.tHead.rows[0].cells].forEach((th, i) => { const b = button("", () => sort(table, i));
    b.append(...th.childNodes); th.append(b); });
  const tools = document.createElement("div"); tools.className = "tools";
  const csv = button(say.csv, () => save(table));
  csv.setAttribute("aria-label", say.csv + ": " + table.caption.textContent); tools.append(csv);
  table.parentElement.after(tools); });
const dark = () => (root.dataset.theme || (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light")) === "dark";
const theme = button(say.theme, () => { root.dataset.theme = dark() ? "light" : "dark"; });
theme.className = "theme"; document.querySelector("header.top").prepend(theme);
})();
