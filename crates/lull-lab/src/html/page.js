"use strict";
// Switches and tooltips only: the page says all it has to say without them.
(() => {
  const each = (selector, act) => document.querySelectorAll(selector).forEach(act);
  each("[data-toggle]", (button) => button.addEventListener("click", () => {
    const on = button.getAttribute("aria-pressed") !== "true";
    button.setAttribute("aria-pressed", on);
    each(".series", (s) => { if (s.dataset.s === button.dataset.toggle) s.classList.toggle("off", !on); });
  }));
  each("[data-scale]", (button) => button.addEventListener("click", () => {
    const linear = document.body.classList.toggle("show-linear");
    button.textContent = linear ? "log scale" : "linear scale";
  }));
  const tip = document.createElement("div");
  tip.id = "tip";
  tip.hidden = true;
  document.body.append(tip);
  // Pointing at a line or a name brings it out.
  document.addEventListener("mouseover", (event) => {
    const over = event.target.closest ? event.target.closest("[data-s],[data-toggle]") : null;
    const name = over ? over.dataset.s || over.dataset.toggle : undefined;
    document.body.classList.toggle("focused", Boolean(name));
    each(".series", (s) => s.classList.toggle("focus", s.dataset.s === name));
  });
  document.addEventListener("mousemove", (event) => {
    const text = event.target.dataset ? event.target.dataset.tip : undefined;
    tip.hidden = !text;
    if (!text) return;
    tip.textContent = text;
    const room = (at, size, all) => Math.max(4, at + 14 + size > all ? at - 14 - size : at + 14);
    tip.style.left = room(event.clientX, tip.offsetWidth, innerWidth) + "px";
    tip.style.top = room(event.clientY, tip.offsetHeight, innerHeight) + "px";
  });
})();
