// Light or dark, as the reader chose it; without a choice as the system has it. It runs before anything is drawn.
(function () {
  let chosen = "";
  try { chosen = localStorage.getItem("holdfast-theme") || ""; } catch (_) { /* storage is switched off */ }
  if (chosen === "light" || chosen === "dark") document.documentElement.dataset.theme = chosen;
  document.documentElement.classList.add("js");
})();
