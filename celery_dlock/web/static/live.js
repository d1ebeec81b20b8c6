// A part of the page asks for itself again, but not while nobody sees it; and says how old it is.
"use strict";

const trouble = () => document.getElementById("trouble");
let answered = Date.now();
const showAge = () => {
  const age = document.getElementById("age");
  const state = document.body.classList.contains("old") ? "old" : "live";
  if (age) age.textContent = `${state}, ${Math.round((Date.now() - answered) / 1000)} s ago ·`;
};
showAge();
setInterval(showAge, 1000);

const isLive = (event) => event.detail.elt.id === "live";

document.addEventListener("htmx:beforeRequest", (event) => {
  if (isLive(event) && document.hidden) event.preventDefault();
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) htmx.trigger("#live", "again");
});
document.addEventListener("htmx:afterRequest", (event) => {
  if (!isLive(event)) return;
  const { successful, xhr } = event.detail;
  document.body.classList.toggle("old", !successful);
  if (successful) {
    answered = Date.now();
    trouble().replaceChildren();
  } else if (xhr.status === 0) {
    const banner = document.createElement("p");
    banner.className = "banner";
    banner.textContent = trouble().dataset.unreachable;
    trouble().replaceChildren(banner);
  }
  showAge();
});
