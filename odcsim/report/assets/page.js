/* Draws the figures of a report in the colours of the screen or paper at hand.

   A figure is a JSON script element; "var(--name)" anywhere in it stands for that custom property of page.css. */
(() => {
  "use strict";

  const PAPER_PX = 690;
  const root = document.documentElement;
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const touch = matchMedia("(pointer: coarse)");

  const figures = [...document.querySelectorAll("script[data-figure]")].map((script) => ({
    target: document.getElementById(script.dataset.figure),
    text: script.textContent,
  }));

  const inColours = (value, style) => {
    if (typeof value === "string") {
      const token = /^var\((--[a-z0-9-]+)\)$/.exec(value);
      return token ? style.getPropertyValue(token[1]).trim() : value;
    }
    if (Array.isArray(value)) return value.map((entry) => inColours(entry, style));
    if (value && typeof value === "object") {
      return Object.fromEntries(Object.entries(value).map(([key, entry]) => [key, inColours(entry, style)]));
    }
    return value;
  };

  const draw = (width) => {
    const style = getComputedStyle(root);
    for (const { target, text } of figures) {
      const { data, layout, config } = inColours(JSON.parse(text), style);
      if (width) layout.width = width;
      // On a touch screen a drag must scroll the page.
      if (touch.matches) layout.dragmode = false;
      Plotly.react(target, data, layout, config);
    }
  };

  draw();
  dark.addEventListener("change", () => draw());
  addEventListener("beforeprint", () => {
    root.dataset.paper = "";
    draw(PAPER_PX);
  });
  addEventListener("afterprint", () => {
    delete root.dataset.paper;
    draw();
  });
})();
