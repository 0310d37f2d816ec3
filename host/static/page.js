// Parts that change by themselves are fetched again every three seconds; without scripts a reload does the same.
"use strict";
const inUse = (part) => part.contains(document.activeElement) || part.querySelector("details[open]") !== null;
const again = async (part) => {
  if (inUse(part)) {
    return; // nobody loses their place while they read or type there
  }
  try {
    const answer = await fetch(part.dataset.again, { credentials: "same-origin" });
    if (answer.redirected) {
      location.reload(); // the session is over: the login, and not within this page
    } else if (answer.ok) {
      const text = await answer.text();
      if (text !== part.dataset.shown && !inUse(part)) {
        part.innerHTML = text;
        part.dataset.shown = text;
      }
    }
  } catch (away) {
    // the page was stopped: what is shown stays
  }
};
for (const part of document.querySelectorAll("[data-again]")) {
  setInterval(() => again(part), 3000);
}
