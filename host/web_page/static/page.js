// Parts that change while rounds go on are fetched again every three seconds; without scripts a reload does the same.
"use strict";
const again = async (part) => {
  try {
    const answer = await fetch(part.dataset.again, { credentials: "same-origin" });
    if (answer.ok) {
      const text = await answer.text();
      if (text !== part.dataset.shown) {
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
