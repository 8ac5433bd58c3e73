"use strict";
(() => {
  const all = (selector, root = document) => Array.from(root.querySelectorAll(selector));

  // One plan at a time; without this script they follow each other.
  const plans = all("section.plan");
  const buttons = all("button[data-plan]");
  const show = (family) => {
    plans.forEach((p) => { p.hidden = p.dataset.family !== family; });
    buttons.forEach((b) => b.setAttribute("aria-pressed", String(b.dataset.plan === family)));
    all("nav a[data-part]").forEach((a) => a.setAttribute("href", "#" + a.dataset.part + "-" + family));
  };
  buttons.forEach((b) => { b.hidden = false; b.addEventListener("click", () => show(b.dataset.plan)); });
  if (plans.length) show(plans[0].dataset.family);

  // A link into what is folded or on another plan opens it.
  const reveal = () => {
    let target = null;
    try { target = document.getElementById(decodeURIComponent(location.hash.slice(1))); } catch (e) { return; }
    if (!target) return;
    const plan = target.closest("section.plan");
    if (plan) show(plan.dataset.family);
    for (let d = target.closest("details"); d; d = d.parentElement.closest("details")) d.open = true;
    target.scrollIntoView();
  };
  addEventListener("hashchange", reveal);
  document.addEventListener("click", (e) => {
    const a = e.target.closest && e.target.closest('a[href^="#"]');
    if (a && a.getAttribute("href") === location.hash) reveal();
  });
  if (location.hash) reveal();

  // What fused into what: pointing at one side marks the other.
  all(".pair").forEach((pair) => {
    const svgs = all("svg", pair), nodes = all("[data-op]", pair);
    const mark = (op) => {
      svgs.forEach((s) => s.classList.toggle("busy", op !== null));
      nodes.forEach((n) => n.classList.toggle("on", op !== null && n.dataset.op.split(" ").some((x) => op.includes(x))));
    };
    nodes.forEach((n) => {
      n.addEventListener("mouseenter", () => mark(n.dataset.op.split(" ")));
      n.addEventListener("mouseleave", () => mark(null));
    });
  });

  // A drawing is as wide as it is and scrolls; or it is as wide as the page, or larger.
  all(".pair > div, .scroll").forEach((frame) => {
    const svg = frame.querySelector("svg");
    if (!svg) return;
    const natural = svg.width.baseVal.value;
    const bar = document.createElement("div");
    const set = (width) => { svg.style.width = Math.min(Math.max(width, natural / 8), natural * 4) + "px"; };
    const now = () => svg.getBoundingClientRect().width || natural;
    bar.className = "zoom";
    [["\u2212", "smaller", () => set(now() / 1.25)], ["+", "larger", () => set(now() * 1.25)], ["fit", "as wide as the page", () => set(frame.clientWidth)],
     ["1:1", "as it was drawn", () => set(natural)]].forEach(([text, title, action]) => {
      const b = document.createElement("button");
      b.textContent = text;
      b.title = title;
      b.addEventListener("click", action);
      bar.append(b);
    });
    frame.prepend(bar);
  });

  const fold = document.getElementById("fold");
  fold.hidden = false;
  fold.addEventListener("click", () => {
    const open = fold.dataset.open !== "1";
    fold.dataset.open = open ? "1" : "0";
    fold.textContent = open ? "Fold all" : "Unfold all";
    all("main details").forEach((d) => { d.open = open; });
  });

  const theme = document.getElementById("theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const root = document.documentElement;
    const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
  });
})();
