// A part of the page asks for itself again, but not while nobody sees it; and says when it is old.
"use strict";

const trouble = () => document.getElementById("trouble");
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
  if (successful) trouble().replaceChildren();
  else if (xhr.status === 0) {
    const banner = document.createElement("p");
    banner.className = "banner";
    banner.textContent = trouble().dataset.unreachable;
    trouble().replaceChildren(banner);
  }
});
