"use strict";
(() => {
  const colours = __COLOURS__;
  const holders = Array.from(document.querySelectorAll("[data-figure]"));

  function draw(holder) {
    const style = getComputedStyle(document.documentElement);
    const text = document.getElementById(holder.dataset.figure).textContent;
    const item = JSON.parse(text, (key, value) =>
      typeof value === "string" && Object.hasOwn(colours, value) && /(_color|^value)$/.test(key)
        ? style.getPropertyValue(colours[value]).trim()
        : value);
    holder.replaceChildren();
    holder.dataset.drawn = "yes";
    Bokeh.embed.embed_item(item, holder.id);
  }

  function drawVisible() {
    for (const holder of holders) {
      if (!holder.dataset.drawn && !holder.closest("details:not([open])")) draw(holder);
    }
  }

  drawVisible();
  for (const details of document.querySelectorAll("details")) details.addEventListener("toggle", drawVisible);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    for (const holder of holders) if (holder.dataset.drawn) draw(holder);
  });
})();
