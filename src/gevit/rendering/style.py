"""How a report looks: light or dark as the reader's system is, and plain on paper."""

STYLE = """
:root {
  color-scheme: light dark;
  --paper: #ffffff; --panel: #f6f7f9; --line: #e3e6ea; --ink: #1c2127; --quiet: #5b6571; --grid: #dfe3e8;
  --blue: #0072b2; --orange: #d55e00; --blue-rgb: 0, 114, 178; --orange-rgb: 213, 94, 0;
}
@media (prefers-color-scheme: dark) {
  :root {
    --paper: #14171b; --panel: #1c2126; --line: #2d343b; --ink: #e6e9ec; --quiet: #9aa5b1; --grid: #333b43;
    --blue: #56b4e9; --orange: #f0883e; --blue-rgb: 60, 150, 210; --orange-rgb: 230, 120, 40;
  }
}
* { box-sizing: border-box; }
body {
  margin: 0 auto; padding: 2.5rem 1.5rem 4rem; max-width: 68rem; background: var(--paper); color: var(--ink);
  font: .94rem/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", Arial, sans-serif;
  font-variant-numeric: tabular-nums;
}
h1 { font-size: 1.75rem; line-height: 1.2; margin: 0 0 .3rem; letter-spacing: -.01em; }
h2 { font-size: 1.15rem; margin: 2.75rem 0 .75rem; padding-bottom: .35rem; border-bottom: 1px solid var(--line); }
h3 { font-size: .95rem; margin: 0 0 .4rem; }
p { margin: 0 0 .75rem; max-width: 46rem; }
.quiet { color: var(--quiet); }
.tiles { display: grid; gap: .75rem; grid-template-columns: repeat(auto-fit, minmax(9.6rem, 1fr));
  margin: 1.5rem 0 0; }
.tile { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .8rem .9rem; }
.tile dt { color: var(--quiet); font-size: .82rem; }
.tile dd { margin: 0; }
.tile .value { padding: .1rem 0 .15rem; font-size: 1.3rem; font-weight: 650; white-space: nowrap; }
.tile .note { color: var(--quiet); font-size: .8rem; line-height: 1.35; }
.charts { display: grid; gap: 1.25rem; grid-template-columns: repeat(auto-fit, minmax(18rem, 1fr)); }
.charts figure, figure.wide { margin: 0; min-width: 0; }
figure.wide { max-width: 46rem; }
figcaption { font-weight: 600; font-size: .9rem; margin-bottom: .2rem; }
svg { display: block; width: 100%; height: auto; }
svg text { font-family: inherit !important; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .9rem; }
th, td { padding: .3rem .8rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--quiet); vertical-align: bottom; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
tbody th { color: var(--ink); font-weight: 500; }
td.words { text-align: left; color: var(--quiet); }
.bar { background: linear-gradient(var(--blue), var(--blue)) 0 100% / var(--share) 2px no-repeat;
  background-origin: content-box; }
.pair { display: grid; gap: 0 2.5rem; grid-template-columns: repeat(auto-fit, minmax(min(100%, 27rem), 1fr)); }
.pair > * { min-width: 0; }
.confusion { border-collapse: separate; border-spacing: 2px; }
.confusion th, .confusion td { border: 0; padding: .3rem .35rem; }
.confusion td { min-width: 2.3rem; text-align: center; border-radius: 5px; }
.confusion thead th { text-align: center; }
.confusion .turned { writing-mode: vertical-rl; transform: rotate(180deg); text-align: left; margin: 0 auto; }
.confusion tbody th { text-align: right; padding-right: .7rem; }
.confusion .axis { color: var(--quiet); font-weight: 400; font-size: .82rem; }
.right { background: rgba(var(--blue-rgb), var(--share)); }
.wrong { background: rgba(var(--orange-rgb), var(--share)); }
.strong { color: #fff; }
.zero { color: var(--quiet); opacity: .45; }
.facts { columns: 2; column-gap: 2.5rem; font-size: .88rem; margin: 0; }
.facts div { display: flex; gap: 1rem; justify-content: space-between; break-inside: avoid; padding: .18rem 0;
  border-bottom: 1px solid var(--line); }
.facts dt { color: var(--quiet); }
.facts dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
pre { background: var(--panel); border: 1px solid var(--line); border-radius: 10px; padding: .8rem 1rem;
  font-size: .88rem; white-space: pre-wrap; overflow-wrap: anywhere; }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--quiet); font-size: .9rem; margin-bottom: .5rem; }
@media (max-width: 40rem) { .facts { columns: 1; } body { padding: 1.5rem 1rem 3rem; } }
@media print {
  :root {
    --paper: #ffffff; --panel: #ffffff; --line: #cfd4da; --ink: #000000; --quiet: #4a525b; --grid: #dddddd;
    --blue: #0072b2; --orange: #d55e00; --blue-rgb: 0, 114, 178; --orange-rgb: 213, 94, 0;
  }
  html { font-size: 11px; }
  body { max-width: none; padding: 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
  h2 { break-after: avoid; margin-top: 1.5rem; }
  figure, .tile, tr { break-inside: avoid; }
  .charts { grid-template-columns: repeat(3, 1fr); }
  details { display: none; }
}
"""
