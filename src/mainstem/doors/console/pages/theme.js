"use strict";
// Before the first paint, so that nothing flashes. Without a choice, the system's.
(() => {
  let chosen = null;
  try { chosen = localStorage.getItem("mainstem-theme"); } catch { /* storage may be off */ }
  const dark = chosen ? chosen === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  document.documentElement.dataset.theme = dark ? "dark" : "light";
})();
